"""Extrema and elements are exactly what NumPy finds, whatever the shape, values and opset."""

import heapq
import subprocess
import sys

import numpy as np
import onnx_ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import parser

from halfwise.emulation import probe
from halfwise.emulation.ort import Session
from halfwise.emulation.probe import (
    ExtremaProbe,
    Extremum,
    View,
    observable,
    visit_elements,
)
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network
from halfwise.records import TensorName

OPSETS = [7, 11, 13, 18, 21]
floats = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    elements=st.floats(width=32),
)


def f32(values):
    return np.array(values, np.float32)


def i64(values):
    return np.array(values, np.int64)


def extrema_of(net, *samples):
    tool = ExtremaProbe(net.model, observable(net.model))
    return [tool.run(sample) for sample in samples]


def network(body: str, opset: int = 17) -> Network:
    text = f'<ir_version: 8, opset_import: ["" : {opset}]>\n{body}'
    return network_from_proto(parser.parse_model(text))


def by_numpy(array: np.ndarray) -> Extremum:
    finite = np.abs(array[np.isfinite(array)].astype(np.float64))
    return Extremum(float(finite.max(initial=0.0)), int((~np.isfinite(array)).sum()))


def same(a, b):
    return a.keys() == b.keys() and all(a[k].tobytes() == b[k].tobytes() for k in a)


identity = network("g (float x) => (float y) { h = Neg(x) y = Neg(h) }").copy()
identity.graph.inputs[0].shape = None
for node in identity.graph:
    node.outputs[0].shape = None
any_shape = ExtremaProbe(identity, observable(identity))


@given(floats)
def test_extrema_are_exact_for_any_shape_and_values(x):
    outputs, extrema = any_shape.run({"x": x})
    assert outputs["y"].tobytes() == x.tobytes() or np.isnan(x).any()
    assert extrema == dict.fromkeys(["x", "h", "y"], by_numpy(x))


@pytest.mark.parametrize("opset", OPSETS)
def test_every_opset(opset):
    net = network(
        """g (float[2,3] x, int64[2] i) => (float[3,2] y, int64[2] j)
        { a = Relu(x) b = Sqrt(x) c = Sub(a, b) y = Transpose(c) j = Identity(i) }""",
        opset,
    )
    sample = {"x": f32([[-4, 9, 0.25], [1e30, np.inf, 3]]), "i": i64([1, 2])}
    [(outputs, extrema)] = extrema_of(net, sample)
    assert same(outputs, Session(net.model).run(sample))
    assert list(extrema) == ["x", "a", "b", "c", "y"]
    selects = opset >= 9
    assert extrema["x"] == Extremum(float(f32(1e30)) if selects else 0.0, 1)
    assert extrema["a"] == Extremum(float(f32(1e30)) if selects else 0.0, 1)
    assert extrema["b"].nonfinite == 2
    seen = by_numpy(outputs["y"])
    assert extrema["c"] == extrema["y"] == (seen if selects else Extremum(0.0, seen.nonfinite))


def test_finite_tensor_whose_sum_overflows():
    net = network("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    x = np.full(4, np.finfo(np.float32).max)
    [(_, extrema)] = extrema_of(net, {"x": x})
    assert extrema["y"] == Extremum(float(x[0]), 0)


@pytest.mark.parametrize("opset", [11, 18, 21])
def test_tensor_that_is_empty_on_some_samples(opset):
    net = network(
        """g (float[4] x, bool[4] keep) => (float[n] y) { s = Compress(x, keep) y = Exp(s) }""",
        opset,
    )
    x = f32([-1, -2, 3, -4])
    nothing, first_two = np.zeros(4, bool), np.array([1, 1, 0, 0], bool)
    (_, none), (_, some) = extrema_of(net, {"x": x, "keep": nothing}, {"x": x, "keep": first_two})
    assert none["s"] == none["y"] == Extremum(0.0, 0)
    assert some["s"] == Extremum(2.0, 0)


def test_permutations_share_their_source_and_constants_do_not():
    net = network(
        """g (float[2,3] x) => (float[3,2] y, float[3,2] z) <float[2,3] c = {1,2,3,4,5,6}>
        { h = Neg(x) t = Transpose(h) y = Flatten <axis = 1> (t) z = Transpose(c) }"""
    )
    tool = ExtremaProbe(net.model, observable(net.model))
    assert tool._measured == ("x", "h", "z")
    [(_, extrema)] = extrema_of(net, {"x": f32([[1, 2, 3], [np.nan, -5, 6]])})
    assert extrema["y"] == extrema["t"] == extrema["h"] == Extremum(6.0, 1)
    assert extrema["z"] == Extremum(6.0, 0)


def test_observable_leaves_out_what_no_kernel_must_compute():
    net = network(
        """g (float[1,1,4,4] x, int64[1] n, bool b) => (float[1,1,2,2] y, float[1,1,2,2] z)
        {
          y, unused = MaxPool <kernel_shape = [2,2], strides = [2,2]> (x)
          k = Cast <to = 1> (n)
          m, mask = Dropout (y)
          z = If (b) <
            then_branch = t () => (float[1,1,2,2] u) { inside = Neg(m) u = Mul(inside, k) },
            else_branch = e () => (float[1,1,2,2] v) { v = Identity(m) }
          >
        }"""
    )
    assert observable(net.model) == ("x", "y", "k", "m", "z")
    sample = {"x": f32(-np.ones((1, 1, 4, 4))), "n": i64([7]), "b": np.array(True)}
    [(outputs, extrema)] = extrema_of(net, sample)
    assert same(outputs, Session(net.model).run(sample))
    assert extrema["k"] == extrema["z"] == Extremum(7.0, 0)


def test_nothing_to_observe():
    net = network("g (int64[2] x) => (int64[2] y) { y = Neg(x) }")
    [(outputs, extrema)] = extrema_of(net, {"x": i64([1, 2])})
    assert extrema == {}
    assert outputs["y"].tolist() == [-1, -2]


def test_unknown_tensor():
    net = network("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    with pytest.raises(KeyError):
        ExtremaProbe(net.model, [TensorName("nowhere")])


def test_the_model_is_not_changed():
    net = network("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    before = onnx_ir.to_proto(net.model).SerializeToString()
    extrema_of(net, {"x": f32([np.nan, 1])})
    assert onnx_ir.to_proto(net.model).SerializeToString() == before


def chain(length: int, elements: int, rows: str = "1") -> Network:
    steps = "".join(f"t{i + 1} = Add(t{i}, one) " for i in range(length))
    return network(
        f"""g (float[{rows},{elements}] t0) => (float[{rows},{elements}] t{length})
        <float[1] one = {{1}}>
        {{ {steps} }}"""
    )


@pytest.mark.parametrize(("exact", "sessions"), [(False, 2), (True, 1)])
def test_same_suspects_need_no_new_session(monkeypatch, exact, sessions):
    net = chain(6, 4)
    made: list[Session] = []

    def making(*args, **options):
        made.append(Session(*args, **options))
        return made[-1]

    monkeypatch.setattr(probe, "Session", making)
    tool = ExtremaProbe(net.model, observable(net.model), exact=exact)
    for _ in range(5):
        _, extrema = tool.run({"t0": f32([[np.inf, 1, 2, np.nan]])})
        assert set(extrema.values()) <= {Extremum(float(2 + i), 2) for i in range(7)}
    assert len(made) == sessions


@pytest.mark.slow
def test_memory_stays_that_of_plain_inference():
    # ONNX Runtime's memory is seen only by the operating system, hence a process of its own.
    program = """
import resource, sys
import numpy as np
sys.path.insert(0, ".")
from tests.unit.emulation.test_probe import ExtremaProbe, chain, observable
net = chain(128, 1 << 20)
tool = ExtremaProbe(net.model, observable(net.model))
sample = {"t0": np.ones((1, 1 << 20), np.float32)}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
tool.run(sample)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True
    )
    all_activations_kib = 128 * 4096
    assert int(done.stdout) < all_activations_kib / 8


@pytest.mark.parametrize("magnitudes", [True, False])
def test_few_nodes_wait_while_the_graph_is_walked(monkeypatch, magnitudes):
    # ONNX Runtime goes through those that wait for each node: many make loading quadratic.
    packed: list[onnx_ir.Model] = []
    monkeypatch.setattr(probe, "Session", lambda model, **_: packed.append(model))
    net = chain(400, 4)
    ExtremaProbe(net.model, observable(net.model), magnitudes=magnitudes)
    assert most_waiting(packed[0].graph) <= 8


def most_waiting(graph: onnx_ir.Graph) -> int:
    """Return how many nodes can come next at most, where the one written first always comes."""
    at = {node: i for i, node in enumerate(graph)}
    nodes = list(graph)
    open_inputs = {n: len({p for v in n.inputs if v and (p := v.producer())}) for n in nodes}
    waiting = [at[n] for n in nodes if not open_inputs[n]]
    heapq.heapify(waiting)
    most = done = 0
    while waiting:
        most = max(most, len(waiting))
        node = nodes[heapq.heappop(waiting)]
        done += 1
        for reader in {use.node for v in node.outputs for use in v.uses()}:
            open_inputs[reader] -= 1
            if not open_inputs[reader]:
                heapq.heappush(waiting, at[reader])
    assert done == len(nodes)
    return most


def view(names, visit):
    return View(tuple(names), visit)


def test_elements_come_in_chunks_of_bounded_size(monkeypatch):
    net = chain(10, 256)
    fetched: list[int] = []
    run = Session.run

    def counting(self, sample, outputs=None, **how):
        results = run(self, sample, outputs, **how)
        fetched.append(sum(a.nbytes for a in results.values() if a.dtype == np.float32))
        return results

    monkeypatch.setattr(Session, "run", counting)
    samples = [{"t0": np.full((1, 256), i, np.float32)} for i in range(3)]
    seen = []
    views = [
        view((f"t{i}", f"t{i + 1}"), lambda s, a, b, i=i: seen.append((i, s, a[0, 0], b[0, -1])))
        for i in range(10)
    ]
    sizes = dict.fromkeys(observable(net.model), 256)
    visit_elements(net.model, samples, views, sizes, live_bytes=4096)
    assert sorted(seen) == [(i, s, s + i, s + i + 1) for i in range(10) for s in range(3)]
    assert max(fetched) <= 4096
    assert len(fetched) > 1 + 3


def test_as_much_is_fetched_at_a_time_as_the_model_takes_anyway(monkeypatch):
    monkeypatch.setattr(probe, "LIVE_BYTES", (1 << 10, 1 << 14))
    runs: list[int] = []
    run = Session.run

    def counting(self, sample, outputs=None, **how):
        runs.append(len(outputs))
        return run(self, sample, outputs, **how)

    monkeypatch.setattr(Session, "run", counting)
    for width, wanted in ((16, [10]), (256, [2] * 5), (1 << 14, [1] * 10)):
        net = chain(10, width)
        views = [view((f"t{i + 1}",), lambda *_: None) for i in range(10)]
        runs.clear()
        sample = {"t0": np.zeros((1, width), np.float32)}
        visit_elements(net.model, [sample], views, dict.fromkeys(observable(net.model), width))
        assert runs == wanted


def test_one_view_larger_than_the_bound_is_still_visited():
    net = chain(2, 64)
    seen = []
    sample = {"t0": np.zeros((1, 64), np.float32)}
    one = view(("t1", "t2"), lambda *_: seen.append(1))
    sizes = dict.fromkeys(observable(net.model), 64)
    visit_elements(net.model, [sample], [one, one], sizes, live_bytes=1)
    assert seen == [1, 1]


def test_views_of_inputs_and_of_integer_tensors():
    net = network(
        """g (float[4] x, int64[1] k) => (float[n] y, int64[n] i)
        { c = Abs(k) y, i = TopK(x, c) }"""
    )
    seen = []
    sample = {"x": f32([3, 1, 2, 0]), "k": i64([-2])}
    three = view(("x", "c", "k"), lambda _, *arrays: seen.append([a.tolist() for a in arrays]))
    visit_elements(net.model, [sample], [three], {})
    assert seen == [[[3, 1, 2, 0], [2], [-2]]]


def test_views_of_all_outputs_of_the_last_node():
    net = network("g (float[4] x) => (float[2] y, float[2] z) { y, z = Split(x) }", opset=12)
    seen = []
    both = [view((name,), lambda _, array: seen.append(array.tolist())) for name in "yz"]
    visit_elements(net.model, [{"x": f32([3, 1, 2, 0])}], both, {})
    assert seen == [[3, 1], [2, 0]]


# --- without magnitudes -----------------------------------------------------------------------


def test_without_magnitudes_only_non_finite_elements_are_counted():
    net = network("g (float[4] x) => (float[4] y) { h = Log(x) y = Relu(h) }")
    probe = ExtremaProbe(net.model, observable(net.model), magnitudes=False)
    sample = {"x": np.array([-1, 0, 1, 2], np.float32)}
    full = ExtremaProbe(net.model, observable(net.model))
    outputs, extrema = probe.run(sample)
    expected, known = full.run(sample)
    assert outputs["y"].tobytes() == expected["y"].tobytes()
    assert {n: e.nonfinite for n, e in extrema.items()} == {
        n: e.nonfinite for n, e in known.items()
    }
    assert extrema[TensorName("h")].nonfinite == 2
