import numpy as np
import onnx
import onnx_ir as ir
import pytest

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.errors import BuildFailed, CaseError, KernelMissing
from halfwise.fixing import rewrite as stage
from halfwise.fixing.rewrite import prepare as network_for
from halfwise.fixing.rewrite import rewrite, same, save_checked, with_opset_for
from halfwise.formats import BF16, FP16
from halfwise.graph import weights
from halfwise.graph.casts import low_type
from halfwise.graph.conversion import raise_opset
from halfwise.graph.loading import load_network
from halfwise.graph.model import Network, constant_array
from halfwise.graph.roles import Role, float_io, roles_of
from halfwise.judging.reference import check_types
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from halfwise.records import NodeName, replace
from halfwise.reporting.remarks import remark
from tests import models
from tests.unit.casing import names, prepare
from tests.unit.graph.sketch import Sketch, f32


def mixed(ill, kept=frozenset(), *, fixed=frozenset(), low_io=frozenset()):
    prepared = prepare(ill)
    return rewrite(prepared.network, prepared.roles, kept, FP16, fixed=fixed, low_io=low_io)


def types(model: ir.Model) -> dict[str, str]:
    return {str(v.name): v.dtype.name for n in model.graph for v in n.outputs if v.dtype}


def test_what_is_placed_is_what_the_model_holds():
    rewritten = mixed(models.layer_norm(), models.layer_norm().kept)
    found = types(rewritten.model)
    assert found["square_out"] == "FLOAT"
    assert found["centre_out"] == "FLOAT16"
    casts = [n for n in rewritten.model.graph if n.op_type == "Cast"]
    assert len(casts) == rewritten.casts > 0


def test_low_inputs_and_outputs():
    rewritten = mixed(models.small(), low_io=float_io(prepare(models.small()).network))
    ends = [*rewritten.model.graph.inputs, *rewritten.model.graph.outputs]
    assert {v.dtype for v in ends} == {ir.DataType.FLOAT16}
    assert rewritten.casts == 0


def test_what_is_saved_is_valid_and_the_same_model(tmp_path):
    ill = models.layer_norm()
    rewritten = mixed(ill, ill.kept)
    save_checked(rewritten.model, tmp_path / "m.onnx")
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    saved = Session(load_network(tmp_path / "m.onnx").model).run(ill.sample(0))
    made = Session(rewritten.model).run(ill.sample(0))
    np.testing.assert_array_equal(saved["gamma_out"], made["gamma_out"])


@pytest.mark.parametrize("external", [True, False])
def test_large_models_keep_their_weights_in_a_file_of_their_own(tmp_path, monkeypatch, external):
    monkeypatch.setattr(weights, "EXTERNAL_DATA_BYTES", 100 if external else 10_000)
    sketch = Sketch()
    x = sketch.input("x", [1, 64])
    y = sketch.op("MatMul", x, models.weights(64, 64, seed=2, scale=0.1), name="matmul")
    ill = models.Ill(sketch.proto(y), {"x": models.signals(1, 64, seed=3)})
    rewritten = mixed(ill)
    save_checked(rewritten.model, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.data").is_file() == external
    found = load_network(tmp_path / "m.onnx")
    saved = Session(found.model).run(ill.sample(0))
    made = Session(rewritten.model).run(ill.sample(0))
    np.testing.assert_array_equal(saved["matmul_out"], made["matmul_out"])


def test_weights_beside_the_users_model_are_copied(tmp_path):
    ill = models.huge_weights()
    (tmp_path / "user").mkdir()
    (tmp_path / "run").mkdir()
    onnx.save(
        ill.proto,
        tmp_path / "user" / "m.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    network = load_network(tmp_path / "user" / "m.onnx")
    prepared = prepare(models.huge_weights())
    rewritten = rewrite(
        network, prepared.roles, names(*ill.kept), FP16, fixed=frozenset(), low_io=frozenset()
    )
    save_checked(rewritten.model, tmp_path / "run" / "m.onnx")
    (tmp_path / "user" / "weights.bin").unlink()
    outputs = Session(load_network(tmp_path / "run" / "m.onnx").model).run(ill.sample(0))
    found = np.asarray(outputs["matmul_out"], np.float64)
    np.testing.assert_allclose(found, prepared.references[0]["matmul_out"], 1e-2)


def test_the_file_is_loaded_and_not_what_was_written(tmp_path, monkeypatch):
    """A fault in writing shows only in what was written."""
    loaded = []
    monkeypatch.setattr(stage, "Session", lambda model, **_: loaded.append(model))
    rewritten = mixed(models.small())
    save_checked(rewritten.model, tmp_path / "m.onnx")
    (found,) = loaded
    assert found is not rewritten.model
    assert ir.serde.serialize_model(found) == onnx.load(tmp_path / "m.onnx")


def in_bf16(ill: models.Ill) -> ir.Model:
    network = prepare(ill).network
    roles = roles_of(network, low_type(BF16))
    return rewrite(network, roles, frozenset(), BF16, fixed=frozenset(), low_io=frozenset()).model


def test_a_kernel_that_the_cpu_lacks_for_bf16_is_no_fault(tmp_path):
    model = in_bf16(models.layer_norm())
    with pytest.raises(KernelMissing):
        Session(model)
    save_checked(model, tmp_path / "m.onnx")
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)


def test_an_operator_that_onnx_runtime_expands_to_one_without_bf16_is_no_fault(tmp_path):
    sketch = Sketch(13)
    clipped = sketch.op("Clip", sketch.input("x", [1, 8]), f32(-1.0), f32(1.0), name="clip")
    model = in_bf16(models.Ill(sketch.proto(clipped), {"x": models.signals(1, 8, seed=1)}))
    # It becomes Where 9, which takes no BF16: a type error in a node that ONNX Runtime made.
    with pytest.raises(KernelMissing, match="Where"):
        Session(model)
    save_checked(model, tmp_path / "m.onnx")


@pytest.mark.parametrize("make", [lambda ill: mixed(ill).model, in_bf16])
def test_an_invalid_model_is_refused_and_removed(tmp_path, make):
    model = make(models.small())
    node = next(n for n in model.graph if n.op_type == "Add")
    wide = ir.val("wide", const_value=ir.tensor(f32(np.ones(8)), name="wide"))
    model.graph.register_initializer(wide)
    node.replace_input_with(1, wide)
    with pytest.raises(BuildFailed, match="not valid"):
        save_checked(model, tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_large_model_goes_with_its_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "EXTERNAL_DATA_BYTES", 0)

    def refuse(*_, **__):
        raise onnx.checker.ValidationError("no")

    rewritten = mixed(models.large_weights())
    monkeypatch.setattr(onnx.checker, "check_model", refuse)
    with pytest.raises(BuildFailed, match="not valid"):
        save_checked(rewritten.model, tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def swirl():
    """A model in FP16 with an operator that ONNX Runtime does not know."""
    ends = [ir.val(name, ir.DataType.FLOAT16, [4]) for name in "xy"]
    node = ir.node("Swirl", ends[:1], outputs=ends[1:], domain="com.example", name="swirl")
    opsets = {"": 17, "com.example": 1}
    graph = ir.Graph(ends[:1], ends[1:], nodes=[node], opset_imports=opsets, name="g")
    return ir.Model(graph, ir_version=10)


def test_what_a_rule_lowered_need_not_run_here(tmp_path):
    save_checked(swirl(), tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").is_file()


def test_a_custom_operator_in_fp32_has_to_run(tmp_path):
    model = swirl()
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.type = ir.TensorType(ir.DataType.FLOAT)
    with pytest.raises(BuildFailed, match="Swirl"):
        save_checked(model, tmp_path / "m.onnx")


def convolution(opset: int) -> models.Ill:
    s = Sketch(opset)
    x = s.input("x", [1, 2, 8, 8])
    c = s.op("Conv", x, models.weights(4, 2, 3, 3, seed=1, scale=0.2), name="conv")
    y = s.op("ReduceMean", c, name="mean", axes=[2, 3])
    return models.Ill(s.proto(y), {"x": models.signals(1, 2, 8, 8, seed=4)})


@pytest.mark.parametrize("opset", [13, 17])
def test_the_opset_is_raised_where_convolutions_need_it(opset) -> None:
    prepared = prepare(convolution(opset))
    raised, note = with_opset_for(BF16, prepared.network, prepared.samples)
    assert raised.opset == 22
    assert note is not None
    assert remark(note) == (
        f"The opset was raised from {opset} to 22, which these need for BF16: Conv; "
        "outputs were the same on 4 samples."
    )


def test_the_opset_is_raised_where_sums_in_fp16_need_it() -> None:
    prepared = prepare(convolution(11))
    raised, note = with_opset_for(FP16, prepared.network, prepared.samples, low_sums=True)
    assert raised.opset == 13
    assert note is not None
    assert note.numbers == {"opset": 11, "raised": 13, "samples": 4}
    assert "sums in FP16: Conv, ReduceMean" in remark(note)


def normalised(opset: int) -> models.Ill:
    s = Sketch(opset)
    x = s.input("x", [1, 4, 8])
    n = s.op("LayerNormalization", x, f32(np.ones(8)), f32(np.zeros(8)), name="norm", axis=-1)
    return models.Ill(s.proto(s.op("Sigmoid", n, name="y")), {"x": models.signals(1, 4, 8, seed=4)})


def test_a_norm_of_onnx_runtimes_optimiser_is_low_at_its_own_opset() -> None:
    prepared = prepare(normalised(12))
    check_types(prepared.network)
    same, note = with_opset_for(FP16, prepared.network, prepared.samples)
    assert (same.opset, note) == (12, None)
    assert roles_of(same)[NodeName("norm")].role is Role.COMPUTE


def test_nothing_is_done_for_nothing() -> None:
    prepared = prepare(convolution(17))
    assert with_opset_for(FP16, prepared.network, prepared.samples) == (prepared.network, None)
    small = prepare(models.small())
    assert with_opset_for(BF16, small.network, small.samples) == (small.network, None)


def test_an_adapter_that_changes_the_function_is_not_used(monkeypatch) -> None:
    """The converter of ONNX has had such faults."""
    prepared = prepare(convolution(17))

    def wrong(network: Network, opset: int) -> Network:
        model = raise_opset(network, opset).model
        weight = next(v for v in model.graph.initializers.values() if v.shape and len(v.shape) == 4)
        array = constant_array(weight).astype(np.float32) * f32(1 + 1e-5)
        weight.const_value = ir.tensor(array, name=weight.name)
        return replace(network, model=model)

    monkeypatch.setattr(stage, "raise_opset", wrong)
    kept, note = with_opset_for(BF16, prepared.network, prepared.samples)
    assert kept is prepared.network
    assert note is not None
    assert "stays at 17" in remark(note)
    assert "something else" in remark(note)


def test_a_converter_that_gives_up_leaves_the_opset(monkeypatch) -> None:
    prepared = prepare(convolution(17))

    def fail(_: Network, _opset: int) -> Network:
        raise CaseError("No adapter.", "")

    monkeypatch.setattr(stage, "raise_opset", fail)
    kept, note = with_opset_for(BF16, prepared.network, prepared.samples)
    assert kept is prepared.network
    assert note is not None
    assert remark(note).endswith("No adapter.")


def test_a_single_sample_will_do() -> None:
    prepared = prepare(convolution(17))
    one = Samples(("s",), lambda _: prepared.samples[0])
    assert with_opset_for(BF16, prepared.network, one)[0].opset == 22


@pytest.mark.parametrize(
    ("before", "after", "equal"),
    [
        (f32([1, 1000]), f32([1, 1000]), True),
        (f32([1, 1000]), f32([1.0009, 1000]), True),
        (f32([1, 1000]), f32([1.002, 1000]), False),
        (f32([1, np.nan, np.inf]), f32([1, np.nan, np.inf]), True),
        (f32([1, np.inf]), f32([1, -np.inf]), False),
        (f32([1, 2]), f32([1, np.nan]), False),
        (f32([1, 2]), f32([[1, 2]]), False),
        (f32([1]), np.array([1.0]), False),
        (f32([]), f32([]), True),
        (np.array([1, 2]), np.array([1, 3]), False),
        (np.array(["a"], object), np.array(["a"], object), True),
    ],
)
def test_outputs_are_compared_to_a_millionth_of_the_largest(before, after, equal) -> None:
    assert same({"y": before}, {"y": after}) is equal


def test_outputs_have_the_same_names() -> None:
    assert not same({"y": f32([1])}, {"z": f32([1])})


@pytest.mark.parametrize(("opset", "raised"), [(11, 13), (17, 17)])
def test_an_old_opset_is_raised_for_int8_alone(opset, raised):
    s = Sketch(opset=opset)
    y = s.op("MatMul", s.input("x", [2, 4]), f32(np.eye(4)))
    for to, expected in (("int8", raised), ("fp16", opset)):
        request = understand({"x": np.ones((4, 2, 4), np.float32)}, {"to": to})
        case = load_case(s.proto(y), request.data, request.criterion)
        prepared = network_for(case, None, request.settings, Silent())
        assert prepared.case.network.opset == expected
        assert prepared.original is prepared.case.network
        assert len(prepared.notes) == (expected != opset)
