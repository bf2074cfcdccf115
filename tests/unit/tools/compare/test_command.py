import json
import shlex

import ml_dtypes
import numpy as np
import onnx
import pytest

from halfwise import api
from halfwise.errors import CaseError, UsageError
from halfwise.records import NodeName
from halfwise.reporting.parts import MOST_ROWS, Table
from halfwise.tools.compare.command import comparison as shown
from tests.polygraphy_files import write_runners
from tests.unit.reporting.comparisons import comparison, node
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


def test_another_file(files):
    found = compare(files, str(files / "altered.onnx"))
    assert found.first == ("b",)
    assert found.different
    again = compare(files, "ort", a=str(files / "altered.onnx"))
    assert again.first == ("b",)


@pytest.mark.parametrize("low", ["fp16", "bf16", "tf32"])
def test_emulations(files, low):
    assert compare(files, f"emulation:{low}").outputs["y_out"] > 1e-6


def test_the_emulation_of_a_mixed_file(files):
    api.fix(files / "m.onnx", files / "x.npz", out=files / "run", max_abs=1.0)
    found = compare(files, f"emulation:{files / 'run' / 'model.onnx'}")
    assert found.b.startswith("emulation of")
    assert found.tolerance == pytest.approx(2e-3)


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
    command = fake_worker("10.0.1", broken={"b": 1.1})
    found = compare(files, "engine", trt_command=shlex.join(command))
    assert found.first == ("b",)
    assert found.builds == 3


@pytest.mark.parametrize("b", ["nothing", "emulation:int8", "ort:fast", ""])
def test_what_is_no_source(files, b):
    with pytest.raises(UsageError, match="nothing that can be compared"):
        compare(files, b)


def test_what_is_wrong_is_told_before_a_worker_is_asked(files):
    with pytest.raises(UsageError, match="'engine:int8' is nothing that can be compared"):
        compare(files, "engine:int8", trt_command="/no/such/python")
    with pytest.raises(UsageError, match="--runner has no meaning"):
        compare(files, "engine", runner="trt", trt_command="/no/such/python")


def test_engine_options_need_an_engine(files):
    with pytest.raises(UsageError, match="no meaning"):
        compare(files, "ort", max_builds=3)


def test_files_that_cannot_be_used(files):
    with pytest.raises(CaseError, match="is not a file"):
        compare(files, "nowhere.onnx")
    np.savez(files / "other.npz", z=DATA)
    with pytest.raises(CaseError, match="holds no tensor of the model"):
        compare(files, str(files / "other.npz"))
    for wrong in (np.full((3, 4, 16), "a"), DATA * 1j, DATA.astype(ml_dtypes.bfloat16)):
        np.savez(files / "wrong.npz", y_out=wrong)
        with pytest.raises(CaseError, match=r"'y_out' is .*, expected numbers"):
            compare(files, str(files / "wrong.npz"))
    write_runners(files / "some.json", {"trt": [{"y_out": DATA[0]}, *[{"a_out": DATA[0]}] * 2]})
    with pytest.raises(CaseError, match="other tensors for some samples"):
        compare(files, str(files / "some.json"))
    model = proto()
    model.graph.input[0].name = "z"
    model.graph.node[0].input[0] = "z"
    onnx.save(model, files / "renamed.onnx")
    with pytest.raises(CaseError, match=r"inputs of .* are \['z'\]"):
        compare(files, str(files / "renamed.onnx"))


def test_it_survives_json(files):
    found = compare(files, str(files / "altered.onnx"))
    assert json.loads(found.model_dump_json())["first"] == ["b"]


def parts(found):
    return {part.title: part for part in shown(found).parts}


def texts(found):
    return " ".join(
        " ".join(" ".join(row) for row in part.rows)
        if isinstance(part, Table)
        else " ".join(part.lines)
        for part in shown(found).parts
    )


def test_the_first_divergence_is_the_title():
    report = shown(comparison())
    assert report.title == "First divergence: b"
    assert report.passed is False
    assert "A: ONNX Runtime, FP32 · B: engine" in report.about


def test_what_each_part_tells():
    found = parts(comparison())
    assert found["Born there"].lines[0].startswith("B, given these very inputs, is off by inf")
    assert [row[2] for row in found["Outputs"].rows] == ["off", "good"]
    assert [row[0] for row in found["On its way to the output (2 nodes)"].rows] == ["b", "c"]
    assert [row[0] for row in found["Errors are born elsewhere too (1 node)"].rows] == ["d"]
    assert found["What else to know"].lines == (
        "1 node constant, folded away",
        "1 node fused away in the engine",
        "1 node not looked at",
        "Marking tensors did not change the final outputs.",
        "3 engines built",
    )


def test_a_region_says_that_it_is_one():
    region = (NodeName("a"), NodeName("b"))
    nodes = (node("b", "born", region=region),)
    assert "one of these 2 nodes" in texts(comparison(nodes=nodes, first=region, path=()))


def test_no_divergence():
    report = shown(comparison(nodes=(node("a"),), first=(), path=(), outputs={}))
    assert report.title == "No divergence in 1 node that both sides have"
    assert report.passed is True


def test_errors_that_add_up():
    assert "adds up" in shown(comparison(first=(), path=())).title


def test_a_long_way_is_thinned_to_where_the_error_grows():
    nodes = [node(f"n{i}", "inherited", error=0.5, inherited=0.5) for i in range(40)]
    nodes[0] = node("n0", "born")
    nodes[20] = node("n20", "inherited", error=5, inherited=0.5)
    path = tuple(NodeName(f"n{i}") for i in range(40))
    found = comparison(nodes=tuple(nodes), first=(NodeName("n0"),), path=path)
    rows = parts(found)["On its way to the output (40 nodes)"].rows
    names = [row[0] for row in rows]
    assert len(names) == MOST_ROWS
    assert names[0] == "n0"
    assert names[-1] == "n39"
    assert "n20" in names


def test_names_cannot_repaint_the_terminal():
    evil = "\x1b[2J"
    found = comparison(first=(NodeName(evil),), nodes=(node(evil, "born"),), path=())
    assert "\x1b" not in shown(found).title + texts(found)
