"""One pass for extrema over all samples, one for elements over few, and unchanged outputs."""

import tracemalloc
from itertools import count
from math import inf

import numpy as np
import pytest
from onnx import parser

from halfwise.case import Samples, Seen
from halfwise.emulation.budget import Budget
from halfwise.emulation.ort import Session
from halfwise.emulation.probe import DRAWN, ExtremaProbe, observable
from halfwise.errors import BuildFailed, CaseError
from halfwise.formats import FP16
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network
from halfwise.graph.roles import roles_of
from halfwise.observing import Observer, observe_network, reference
from halfwise.observing.reference import choose_samples
from tests.unit.graph.sketch import f32

OPSETS = [11, 13, 18, 21]


def i64(values):
    return np.array(values, np.int64)


def by_name(found):
    return {o.tensor: o for o in found.tensors}


def network(body: str, opset: int = 17) -> Network:
    text = f'<ir_version: 8, opset_import: ["" : {opset}]>\n{body}'
    return network_from_proto(parser.parse_model(text))


def layered(opset: int = 17) -> Network:
    return network(
        """g (float[n,8] x, int64[1] k) => (float[n,8] y, int64[n] i)
        { s = Softmax <axis = 1> (x) e = Exp (x) f = Cast <to = 1> (k)
          d = Sub (e, s) q = Mul (d, d) y = Mul (q, f) i = ArgMax <axis = 1, keepdims = 0> (y) }""",
        opset,
    )


def samples_of(arrays: list[np.ndarray]) -> Samples:
    ids = tuple(f"x[{i}]" for i in range(len(arrays)))
    return Samples(ids, lambda i: {"x": arrays[i], "k": i64([3])})


def arrays(count: int, scale: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [(scale * rng.standard_normal((2, 8))).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("opset", OPSETS)
def test_outputs_are_those_of_a_plain_run(opset):
    net, samples = layered(opset), samples_of(arrays(5))
    _, outputs = observe_network(net, samples, FP16, roles=roles_of(net))
    plain = Session(net.model)
    for sample, result in zip(samples, outputs, strict=True):
        expected = plain.run(sample)
        assert result.keys() == expected.keys()
        assert all(result[k].tobytes() == expected[k].tobytes() for k in expected)


def test_every_float_tensor_is_observed_over_all_samples():
    net, xs = layered(), arrays(6, 5.0)
    found, _ = observe_network(net, samples_of(xs), FP16, roles=roles_of(net), detail_samples=2)
    tensors = by_name(found)
    assert list(tensors) == ["x", "s", "e", "f", "d", "q", "y"]
    assert tensors["x"].producer is None
    assert (tensors["x"].op, tensors["e"].op) == ("", "Exp")
    assert found.constants == ()
    assert tensors["e"].producer == next(n.name for n in net.nodes() if n.op_type == "Exp")
    peaks = [float(np.abs(x).max()) for x in xs]
    assert tensors["x"].absmax == max(peaks)
    assert tensors["x"].worst_sample == peaks.index(max(peaks))
    assert tensors["f"].absmax == 3.0
    assert found.samples == tuple(f"x[{i}]" for i in range(6))


def test_nonfinite_elements_are_counted_and_absmax_stays_finite():
    net, xs = layered(), arrays(3)
    xs[1][0, :3] = [np.nan, 200, np.inf]
    found, _ = observe_network(net, samples_of(xs), FP16, roles=roles_of(net))
    tensors = by_name(found)
    assert (tensors["x"].absmax, tensors["x"].nonfinite, tensors["x"].worst_sample) == (200, 2, 1)
    assert tensors["e"].nonfinite == 3
    assert np.isfinite(tensors["e"].absmax)


def test_details_merge_the_chosen_samples():
    net, xs = layered(), arrays(4, 4.0)
    found, _ = observe_network(net, samples_of(xs), FP16, roles=roles_of(net))
    exponentials = np.exp(np.stack(xs))
    for observation in found.tensors:
        assert observation.detail is not None
        assert observation.detail.samples == 4
    detail = by_name(found)["e"].detail
    assert detail.overflow == np.isinf(FP16.round(exponentials)).mean()
    assert detail.smallest_nonzero == pytest.approx(exponentials.min(), rel=1e-6)
    assert sum(detail.histogram.counts) == 4 * 16


def test_a_look_that_the_budget_ends_has_no_details(monkeypatch):
    net, xs = layered(), arrays(8, 4.0)
    budget = Budget()
    observer = Observer(net, samples_of(xs), FP16, roles_of(net), budget=budget)
    checks = count()
    real = budget.check

    def check() -> None:
        if next(checks) > 30:
            monkeypatch.setattr(budget, "spent", inf)
        real()

    monkeypatch.setattr(budget, "check", check)
    observer.look(8)
    assert budget.cut == ["observe"]
    assert all(one.detail is None for one in observer.records().tensors)


def test_a_permutation_has_the_details_of_what_it_permutes():
    model = network(
        """g (float[n,8] x) => (float[8,n] y)
        { e = Exp (x) t = Transpose (e) y = Sqrt (t) }"""
    )
    samples = Samples(("a", "b"), lambda i: {"x": arrays(2)[i]})
    found, _ = observe_network(model, samples, FP16, roles=roles_of(model))
    seen = by_name(found)
    assert seen["t"].detail == seen["e"].detail != seen["y"].detail
    assert sum(seen["t"].detail.histogram.counts) == 2 * 16


def test_elements_of_a_large_tensor_are_drawn_but_its_smallest_is_exact():
    net = network("g (float[n,512] x) => (float[n,512] y) { y = Sqrt (x) }")
    x = np.tile(f32([1.0, 4.0]), (512, 256))
    x[77, 3], x[78, 4] = 0.0, 2.0**-40
    observed, _ = observe_network(
        net, Samples(("x",), lambda _: {"x": x}), FP16, roles=roles_of(net)
    )
    detail = by_name(observed)["y"].detail
    assert detail.smallest_nonzero == 2.0**-20
    counts = dict(enumerate(detail.histogram.counts, detail.histogram.first))
    assert counts[0] + counts[1] > DRAWN - 5
    # Binomial: five standard deviations.
    assert abs(counts[0] - DRAWN / 2) < 5 * DRAWN**0.5 / 2


def test_a_large_tensor_that_is_empty_on_some_samples_is_visited_whole():
    net = network("g (float[n,512] x) => (float[n,512] y) { y = Sub (x, x) }")
    every = [np.ones((512, 512), np.float32), np.ones((0, 512), np.float32)]
    samples = Samples(("0", "1"), lambda i: {"x": every[i]})
    observed, _ = observe_network(net, samples, FP16, roles=roles_of(net))
    assert by_name(observed)["x"].detail.histogram.counts == (2**18,)


def test_fewer_samples_where_elements_would_be_too_many(monkeypatch):
    net, xs = layered(), arrays(8)
    monkeypatch.setattr(reference, "DETAIL_ELEMENTS", 600)
    found, _ = observe_network(net, samples_of(xs), FP16, roles=roles_of(net))
    per_sample = 6 * 16 + 1
    assert {o.detail.samples for o in by_name(found).values()} == {600 // per_sample}


@pytest.mark.parametrize(("elements", "looked_at"), [(1, 32), (10**7, 10), (10**9, 4)])
def test_elements_are_visited_on_4_to_32_samples(monkeypatch, elements, looked_at):
    per_sample = 6 * 16 + 1
    most = reference.DETAIL_ELEMENTS * per_sample // elements
    monkeypatch.setattr(reference, "DETAIL_ELEMENTS", most)
    net = layered()
    found, _ = observe_network(net, samples_of(arrays(33)), FP16, roles=roles_of(net))
    assert {o.detail and o.detail.samples for o in found.tensors} == {looked_at}


def test_no_details_on_request():
    net = layered()
    found, _ = observe_network(
        net, samples_of(arrays(2)), FP16, roles=roles_of(net), detail_samples=0
    )
    assert all(o.detail is None for o in found.tensors)
    assert found.inner == ()


def test_without_time_there_are_extrema_and_outputs_alone():
    net, budget = layered(), Budget(0)
    roles, samples = roles_of(net), samples_of(arrays(2))
    found, outputs = observe_network(net, samples, FP16, roles=roles, budget=budget)
    plain, expected = observe_network(net, samples, FP16, roles=roles, detail_samples=0)
    assert found == plain
    for own, other in zip(outputs, expected, strict=True):
        np.testing.assert_equal(own, other)
    assert budget.cut == ["observe"]


@pytest.mark.parametrize("readings", [4, 6, 9])
def test_half_of_the_time_is_left_for_the_search(readings):
    """The clock moves with each reading; extrema of two samples are not counted."""
    net, time = layered(), count()
    budget = Budget(2 * readings, lambda: float(next(time)))
    found, outputs = observe_network(
        net, samples_of(arrays(2)), FP16, roles=roles_of(net), budget=budget
    )
    assert budget.cut == ["observe"]
    assert len(outputs) == 2
    assert all(o.detail is None for o in found.tensors)
    assert not budget.is_spent


def test_no_samples():
    net = layered()
    with pytest.raises(CaseError, match="no samples"):
        observe_network(net, samples_of([]), FP16, roles=roles_of(net))


def test_additions_that_do_not_load_are_a_fault_of_halfwise(monkeypatch):
    def broken(network, *_):
        model = network.copy()
        model.graph[0].op_type = "NoSuchOperator"
        return model, {"e": ("e", "sum")}

    monkeypatch.setattr(reference, "with_twins", broken)
    net, samples = layered(), samples_of(arrays(2))
    with pytest.raises(BuildFailed, match="bug in halfwise"):
        observe_network(net, samples, FP16, roles=roles_of(net))


def test_progress_reaches_its_end():
    net, told = layered(), []
    observe_network(
        net,
        samples_of(arrays(5)),
        FP16,
        roles=roles_of(net),
        detail_samples=2,
        progress=lambda done, total: told.append((done, total)),
    )
    assert [done for done, _ in told] == list(range(1, 10))
    assert told[-1] == (9, 9)


def test_tensor_that_is_empty_on_some_samples():
    net = network(
        """g (float[2,8] x, int64[1] k) => (float[n] y)
        <float[1] zero = {0}, int64[1] flat = {-1}>
        { m = Greater (x, zero) c = Reshape (m, flat) s = Compress (x, c) y = Neg (s) }"""
    )
    xs = [-np.ones((2, 8), np.float32), np.full((2, 8), 0.5, np.float32)]
    found, outputs = observe_network(net, samples_of(xs), FP16, roles=roles_of(net))
    tensors = by_name(found)
    assert outputs[0]["y"].size == 0
    assert (tensors["y"].absmax, tensors["y"].worst_sample) == (0.5, 1)
    assert sum(tensors["y"].detail.histogram.counts) == 16


def test_samples_are_not_kept():
    net = network("g (float[n,m] x, int64[1] k) => (float[a,b] y) { y = ReduceMax (x) }")

    def peak(count: int) -> int:
        samples = Samples(
            tuple(map(str, range(count))),
            lambda i: {"x": np.full((512, 1024), i, np.float32), "k": i64([1])},
        )
        tracemalloc.start()
        observe_network(net, samples, FP16, roles=roles_of(net), detail_samples=2)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1)
    assert peak(40) < peak(4) + (1 << 20)


def test_choice_holds_the_worst_samples_and_spreads_the_rest():
    extrema = [(1.0, 7), (2.0, 7), (9.0, 3), (1.0, 5), (0.0, 0), (0.0, 0)]
    assert choose_samples(extrema, range(100), 1) == [7]
    assert choose_samples(extrema, range(100), 4) == [0, 3, 7, 99]
    assert choose_samples(extrema, range(8), 8) == list(range(8))
    assert choose_samples([], range(5), 2) == [0, 4]
    assert choose_samples([], range(1), 1) == [0]


def test_bodies_are_observed_run_by_run():
    net = network("""g (float[4] x) => (float[4] last) <int64 trips = {3}, float two = {2}> {
        last = Loop(trips, , x) <body = b (int64 step, bool go, float[4] state)
            => (bool on, float[4] next) { on = Identity(go) next = Mul(state, two) }> }""")
    samples = Samples(("a", "b"), lambda i: {"x": f32([i + 1, 0, 0, 0])})
    seen = observe_network(net, samples, FP16, roles=roles_of(net))[0]
    tensors = by_name(seen)
    assert (tensors["next"].absmax, tensors["next"].worst_sample) == (16, 1)
    assert tensors["next"].detail.samples == 2
    assert tensors["state"].absmax == 8
    assert len(tensors) == len(seen.tensors)


def test_a_branch_that_never_runs_is_not_observed():
    net = network("""g (bool c, float[2] x) => (float[2] y) { h = Neg(x)
        y = If(c) <then_branch = t () => (float[2] p) { p = Mul(h, h) },
                   else_branch = e () => (float[2] q) { q = Abs(h) }> }""")
    samples = Samples(("a",), lambda _: {"c": np.array(True), "x": f32([300, 1])})
    seen = observe_network(net, samples, FP16, roles=roles_of(net))[0]
    assert list(by_name(seen)) == ["x", "h", "y", "p"]


def test_the_session_of_another_model_is_freed(monkeypatch):
    """Where its opset was raised, say: a run would hold it to its end."""
    freed = list[ExtremaProbe]()
    monkeypatch.setattr(ExtremaProbe, "release", lambda probe: freed.append(probe))  # noqa: PLW0108 - binds it
    before, after = layered(), layered(18)
    probe = ExtremaProbe(before.model, observable(before.model))
    samples = samples_of([np.ones((1, 8), np.float32)])
    seen = Seen(before.model, samples.ids, (probe.run(samples[0]),), probe)
    Observer(after, samples, FP16, roles_of(after), seen=seen)
    assert probe in freed
