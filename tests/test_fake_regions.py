"""Faults of the stand-in's builder follow nodes, in whatever model they are."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.fake_tensorrt.faults import Failure, Fault, strike
from tests.fake_tensorrt.model import read_model
from tests.fake_tensorrt.plan import Plan
from tests.fake_tensorrt.program import Program
from tests.fake_tensorrt.regions import Region, Wrong, inside

_MODEL = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] x) => (float[n, 4] y)
    { [a] a = Abs(x) [b] b = Sqrt(a) [cast] c = Cast<to = 1>(b) [d] d = Neg(c)
      [e] e = Sqrt(a) [y] y = Add(d, e) }"""
_X = np.random.default_rng(0).uniform(1, 2, (3, 4)).astype(np.float32)


def model(text: str = _MODEL) -> ir.Model:
    return read_model(onnx.parser.parse_model(text))


def outputs(*wrongs: Wrong, marked: tuple[str, ...] = (), **plan: Any):
    """Run the model with some faults; return its tensors."""
    made = model()
    defaults = {"version": "8.6.1", "typing": "weak", "low": None, "tf32": False, "fp32": ()}
    how = {**defaults, "outputs": ["y", *marked], **plan}
    proto = ir.serde.serialize_model(made).SerializeToString()
    return Program(Plan(**how), proto, wrongs).run({"x": _X})


RIGHT = np.sqrt(_X) - np.sqrt(_X)


def off(found: np.ndarray) -> float:
    return float(np.max(np.abs(found["y"] - RIGHT)))


@pytest.mark.parametrize("do", ["noise", "scale", "roll", "zero", "nan"])
def test_a_region_gives_something_else(do):
    found = off(outputs(Wrong(nodes=("b",), do=do, size=0.1)))
    assert np.isnan(found) if do == "nan" else found > 0.01


def test_noise_has_its_size():
    size = 10 ** (-30 / 20)
    found = outputs(Wrong(nodes=("a", "b", "d"), size=size))["y"]
    relative = np.sqrt(np.mean(found**2) / np.mean(_X))
    assert size / 2 < relative < size * 2


@pytest.mark.parametrize(
    ("unless", "cured"),
    [("", ()), ("between", ("a", "b")), ("touched", ("a", "b", "x"))],
)
def test_marks_end_fusions(unless, cured):
    wrong = Wrong(nodes=("a", "b"), unless=unless)
    marks = {"": (), "a": ("a",), "d": ("d",)}
    seen = {name: off(outputs(wrong, marked=m)) for name, m in marks.items()}
    assert seen[""] > 0.1 < seen["d"]
    assert (seen["a"] < 1e-5) == ("a" in cured)


def test_a_wrong_fusion_shows_no_tensor_of_its_inside():
    graph = model().graph
    fusion = Wrong(nodes=("a", "b"), unless="between")
    assert inside([fusion, Wrong(nodes=("b", "d"), unless="touched")], graph, set()) == {"a"}
    assert inside([fusion], graph, {"a"}) == set()


def test_chains_of_operators_pass_casts():
    graph = model().graph
    (place,) = Region(ops=("Abs", "Sqrt", "Neg")).places(graph, set(), 3)
    assert [node.name for node in place] == ["a", "b", "d"]
    assert len(Region(ops=("Sqrt",)).places(graph, set(), 3)) == 2
    assert not Region(ops=("Neg", "Sqrt")).places(graph, set(), 3)
    assert not Region(nodes=("a", "absent")).places(graph, set(), 3)
    assert not Region(nodes=("b", "e")).places(graph, set(), 3)
    assert Region(nodes=("a", "b", "e", "d", "y")).places(graph, set(), 3)


def test_levels_batches_and_formats():
    assert off(outputs(Wrong(nodes=("b",), level=2))) > 0.1
    assert off(outputs(Wrong(nodes=("b",), level=2), level=1)) < 1e-5
    assert off(outputs(Wrong(nodes=("b",), batch=3))) > 0.1
    assert off(outputs(Wrong(nodes=("b",), batch=2))) < 1e-5
    assert off(outputs(Wrong(nodes=("b",), low=True))) < 1e-5
    assert off(outputs(Wrong(nodes=("b",), low=True), low="fp16")) > 0.1
    assert off(outputs(Wrong(nodes=("b",), low=True), low="fp16", fp32=["b"])) < 0.01


@pytest.mark.parametrize("region", [Region(nodes=("d", "y")), Region(ops=("Neg", "Add"))])
def test_builders_refuse_a_region(monkeypatch, region):
    monkeypatch.delenv("HALFWISE_FAKE_TENSORRT_COUNTS", raising=False)
    fault = '[{"at": "build", "do": "foreign", "region": {"nodes": %s, "ops": %s}}]'
    lists = (str(list(names)).replace("'", '"') for names in (region.nodes, region.ops))
    monkeypatch.setenv("HALFWISE_FAKE_TENSORRT_FAULTS", fault % tuple(lists))
    about = {"graph": model().graph, "outputs": ["y"], "level": 3, "low": None}
    with pytest.raises(Failure, match=r"ForeignNode\[d\.\.\.y\]"):
        strike("build", about)
    other = model(_MODEL.replace("[d] d = Neg(c)", "[f] d = Exp(c)"))
    strike("build", {**about, "graph": other.graph})


def test_a_fault_without_a_region_strikes_any_network():
    assert Fault("build", "memory").holds({"graph": model().graph, "outputs": [], "level": 3})
