import json
import shlex

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from halfwise import api
from halfwise.errors import CaseError, RunFailed, UsageError
from halfwise.reporting.diagnosis import comparison as shown
from tests import models
from tests.models import signals
from tests.unit.graph.qdq import SIZE, chain, last
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.tools.compare.copies import DATA, SAMPLES, network, proto, side


@pytest.fixture
def files(tmp_path):
    onnx.save(proto(), tmp_path / "m.onnx")
    onnx.save(proto(b=1.1), tmp_path / "altered.onnx")
    np.savez(tmp_path / "x.npz", x=DATA)
    return tmp_path


def compare(files, b, **options):
    return api.compare(files / "m.onnx", files / "x.npz", b=b, **options)


@pytest.mark.parametrize("b", ["ort", "ort:optimised"])
def test_the_same_is_the_same(files, b):
    found = compare(files, b)
    assert not found.different
    assert len(found.samples) == 3


def test_low_types_that_differ_are_to_be_fixed_and_others_diagnosed(tmp_path):
    ill, model, data = models.layer_norm(), tmp_path / "m.onnx", tmp_path / "x.npz"
    onnx.save(ill.proto, model)
    np.savez(data, **dict(ill.inputs))  # type: ignore[arg-type]
    (output,) = ill.proto.graph.output
    wrong = tmp_path / "wrong.npz"
    zeros = {output.name: np.zeros((8, 4, 32), np.float32)}
    np.savez(wrong, **zeros)  # type: ignore[arg-type]
    assert api.compare(model, data, b="emulation:tf32").next_step == ()
    for b, words in (("emulation", ("halfwise", "fix")), (str(wrong), ("halfwise", "diagnose"))):
        (step,) = api.compare(model, data, b=b).next_step
        assert step.command is not None
        assert step.command[:5] == (*words, str(model), "--inputs", str(data))


def test_another_file(files):
    found = compare(files, str(files / "altered.onnx"))
    assert found.first == ("b",)
    assert found.different
    assert found.next_step == ()
    again = compare(files, "ort", a=str(files / "altered.onnx"))
    assert again.first == ("b",)


def test_a_file_with_fp16_inputs_gets_them_and_is_to_be_fixed(files):
    low = proto(b=1.5)
    for weight in low.graph.initializer:
        half = numpy_helper.to_array(weight).astype(np.float16)
        weight.CopyFrom(numpy_helper.from_array(half, weight.name))
    for value in (*low.graph.input, *low.graph.output, *low.graph.value_info):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    onnx.save(low, files / "low.onnx")
    found = compare(files, str(files / "low.onnx"))
    assert found.first == ("b",)
    (step,) = found.next_step
    assert step.kind == "fix"


def test_nothing_compared_is_not_the_same(files):
    model = proto()
    made = {node.output[0] for node in model.graph.node}
    for node in model.graph.node:
        node.name += "_other"
        node.input[:] = [f"{n}_other" if n in made else n for n in node.input]
        node.output[0] += "_other"
    model.graph.output[0].name += "_other"
    del model.graph.value_info[:]
    onnx.save(model, files / "renamed.onnx")
    with pytest.raises(CaseError, match="Nothing was compared"):
        compare(files, str(files / "renamed.onnx"))


def test_a_file_that_runs_on_no_sample_is_not_the_same(files):
    model = proto()
    rows = numpy_helper.from_array(np.full(4, 99, np.int64), "rows")
    model.graph.initializer.append(rows)
    model.graph.node.insert(0, helper.make_node("Gather", ["x", "rows"], ["beyond"], "beyond"))
    model.graph.node[1].input[0] = "beyond"
    onnx.save(model, files / "beyond.onnx")
    with pytest.raises(RunFailed, match="beyond"):
        compare(files, str(files / "beyond.onnx"))


@pytest.mark.parametrize("low", ["fp16", "bf16", "tf32"])
def test_emulations(files, low):
    assert compare(files, f"emulation:{low}").outputs["y_out"] > 1e-6


def test_the_emulation_of_a_mixed_file(files):
    api.fix(files / "m.onnx", files / "x.npz", out=files / "run", max_abs=1.0)
    found = compare(files, f"emulation:{files / 'run' / 'model.onnx'}")
    assert found.b.startswith("emulation of")
    assert found.tolerance == pytest.approx(2e-3)


@pytest.mark.parametrize("source", ["{}", "emulation:{}"])
def test_what_repairs_store_at_another_scale_is_no_fault(tmp_path, source):
    ill = models.conv_chain()
    onnx.save(ill.proto, tmp_path / "m.onnx")
    fixed = api.fix(tmp_path / "m.onnx", dict(ill.inputs), out=tmp_path / "run")
    assert fixed.run.plan is not None
    assert fixed.run.plan.repairs
    b = source.format(tmp_path / "run" / "model.onnx")
    found = api.compare(tmp_path / "m.onnx", dict(ill.inputs), b=b)
    assert not found.different
    assert "1 repair" in found.notes[0]


def test_saved_outputs(files):
    model = side(network(b=1.1).model)
    values = list(model.get(["a_out", "y_out"]))
    a, y = (np.concatenate([v[name] for v in values]) for name in ("a_out", "y_out"))
    np.savez(files / "out.npz", a_out=a, y_out=y)
    found = compare(files, str(files / "out.npz"))
    status = {node.node: node.status for node in found.nodes}
    assert status["a"] == "good"
    assert status["y"] == "born"
    assert status["b"] == "missing"
    assert "b" in found.first
    assert len(values) == len(SAMPLES)


def test_an_engine(files, fake_worker):
    command = fake_worker("11.4.0", broken={"b": 1.1})
    found = compare(files, "engine", trt_command=shlex.join(command))
    assert found.differs
    assert "halfwise diagnose" in found.notes[0]


@pytest.mark.parametrize("b", ["nothing", "emulation:int8", "ort:fast", ""])
def test_what_is_no_source(files, b):
    with pytest.raises(UsageError, match="nothing that can be compared"):
        compare(files, b)


def test_what_is_wrong_is_told_before_a_worker_is_asked(files):
    with pytest.raises(UsageError, match="'engine:int8' is nothing that can be compared"):
        compare(files, "engine:int8", trt_command="/no/such/python")


def test_engine_options_need_an_engine(files):
    with pytest.raises(UsageError, match="not apply"):
        compare(files, "ort", max_builds=3)


def test_files_that_cannot_be_used(files):
    with pytest.raises(CaseError, match="There is no file"):
        compare(files, "nowhere.onnx")
    np.savez(files / "other.npz", z=DATA)
    with pytest.raises(CaseError, match="holds no tensor of the model"):
        compare(files, str(files / "other.npz"))
    for wrong in (np.full((3, 4, 16), "a"), DATA * 1j, DATA.astype(ml_dtypes.bfloat16)):
        np.savez(files / "wrong.npz", y_out=wrong)
        with pytest.raises(CaseError, match=r"'y_out' is .*; expected numbers"):
            compare(files, str(files / "wrong.npz"))
    model = proto()
    model.graph.input[0].name = "z"
    model.graph.node[0].input[0] = "z"
    onnx.save(model, files / "renamed.onnx")
    with pytest.raises(CaseError, match=r"inputs of .* are 'z'"):
        compare(files, str(files / "renamed.onnx"))


def test_it_survives_json(files):
    found = compare(files, str(files / "altered.onnx"))
    assert json.loads(found.to_json())["first"] == ["b"]


def test_a_quantised_file_is_off_where_it_loses_more_than_int8_does(files):
    fine, coarse = chain(["first"]), chain(["first"], dtype=ml_dtypes.int4, per="tensor")
    for name, sketch in (("float", chain([])), ("fine", fine), ("coarse", coarse)):
        onnx.save(sketch.proto(last(sketch)), files / f"{name}.onnx")
    data = {"x": signals(2, SIZE, seed=1, peak=25)}
    found = [
        api.compare(files / "float.onnx", data, b=str(files / name))
        for name in ("fine.onnx", "coarse.onnx")
    ]
    assert [one.first for one in found] == [(), ("first",)]
    assert all(len(one.nodes) == 6 and one.tolerance == 3e-2 for one in found)
    assert [step.kind for step in found[1].next_step] == ["fix-quantised"]
    assert {node.status for node in found[0].nodes} == {"good"}
    low = api.compare(files / "fine.onnx", data, b="emulation:fp16")
    assert (low.first, low.amplified, low.tolerance) == ((), (), 3e-2)
    skipped = {node.op for node in low.nodes if node.status == "skipped"}
    assert skipped == {"QuantizeLinear"}


@pytest.mark.parametrize(("factor", "within"), [(1.005, True), (1.05, False)])
def test_what_fix_would_allow_is_not_to_be_fixed(files, factor, within):
    """`fix` allows 1 %, and a comparison 0.2 %."""
    low = proto(y=factor)
    low.graph.node[-1].output[0] = "half"
    for to, (given, made) in (
        (onnx.TensorProto.FLOAT16, ("half", "low")),
        (onnx.TensorProto.FLOAT, ("low", low.graph.output[0].name)),
    ):
        low.graph.node.add(
            op_type="Cast", name=made, input=[given], output=[made]
        ).attribute.append(helper.make_attribute("to", to))
    onnx.save(low, files / "low.onnx")
    found = compare(files, str(files / "low.onnx"))
    assert found.differs
    assert found.excess == pytest.approx(100 * (factor - 1), rel=0.1)
    assert found.nothing_to_fix is within
    assert [step.kind for step in found.next_step] == ([] if within else ["fix"])
    assert ("within what `halfwise fix` allows" in shown(found).caution) is within


def test_a_tensor_that_holds_what_was_folded_into_its_node_is_not_compared(files):
    s, ones, c = Sketch(), f32(np.ones((2, 2, 1, 1))), f32([1, 2])
    s.op("Conv", s.input("x", [1, 2, 4, 4]), ones, name="conv")
    s.op("BatchNormalization", "conv_out", c, c, c, c, name="norm")
    onnx.save(s.proto(s.op("Relu", "norm_out", name="y")), files / "whole.onnx")
    s = Sketch()
    gain = c / np.sqrt(c + 1e-5)
    weight = f32(ones * gain[:, None, None, None])
    s.op("Conv", s.input("x", [1, 2, 4, 4]), weight, f32(c - c * gain), name="conv")
    onnx.save(s.proto(s.op("Relu", "conv_out", name="y")), files / "folded.onnx")
    data = {"x": signals(1, 2, 4, 4, seed=1, count=2)}
    found = api.compare(files / "whole.onnx", data, b=str(files / "folded.onnx"))
    status = {node.node: node.status for node in found.nodes}
    assert status == {"conv": "missing", "norm": "missing", "y": "good"}
