"""Where the error comes from that guards do not explain."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from halfwise.emulation.budget import OutOfTime
from halfwise.emulation.ort import Session
from halfwise.emulation.typed import emulate_typed
from halfwise.fixing import following
from halfwise.fixing.bench import Bench
from halfwise.fixing.following import computed, follow, growth
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.graph.movement import carried
from halfwise.records import MOST, Followed, Growth, NodeName
from tests import models
from tests.control import BOOL, MATRIX, graph
from tests.unit.casing import Kept, Prepared, names, prepare
from tests.unit.fixing.running import Clock, found
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.judging.test_deciding import near_a_threshold

pytestmark = pytest.mark.usefixtures("unrepaired")


def test_the_error_is_followed_where_guards_do_not_explain():
    fixed = found(models.deep(), rel_max=5e-4)
    assert [step.node for step in fixed.growth] == [f"rotate_{i}" for i in range(10)]
    assert fixed.followed is not None
    assert fixed.followed.kept == ()
    assert fixed.followed.accumulates


def test_without_time_the_error_is_not_followed(monkeypatch):
    fixed = found(models.deep(), Clock(monkeypatch, "growth"), rel_max=5e-4)
    assert not fixed.search.exhausted
    assert (fixed.growth, fixed.followed) == ((), None)
    assert fixed.space.budget.cut == ["growth", "curve"]


def test_without_time_no_origin_is_sought(monkeypatch):
    fixed = found(models.deep(), Clock(monkeypatch, "origin"), rel_max=5e-4)
    assert len(fixed.growth) == 10
    assert fixed.followed is not None
    assert fixed.followed.out_of_time
    assert (fixed.followed.tried, fixed.followed.origin) == ((), None)
    assert fixed.space.budget.cut == ["origin", "curve"]


def test_without_time_for_decisions_the_path_stays(monkeypatch):
    ill = near_a_threshold("Greater", 4.0)
    fixed = found(ill, Clock(monkeypatch, "origin"), rel_max=5e-3)
    assert fixed.growth
    assert fixed.followed is not None
    assert fixed.followed.out_of_time
    assert (fixed.followed.decided, fixed.followed.accumulates) == (None, False)
    assert fixed.space.budget.cut == ["origin", "curve"]


def followed(ill, kept=frozenset()):
    prepared = prepare(ill)
    low = emulate_typed(rewrite(prepared.network, prepared.roles, kept, FP16).model)
    return growth(prepared.network, low, computed(prepared.network, prepared.roles), ill.sample(0))


def test_errors_are_those_of_numpy():
    ill = models.deep(layers=3)
    path = followed(ill)
    assert [step.node for step in path] == ["rotate_0", "rotate_1", "rotate_2"]
    weights = [np.asarray(t.raw_data) for t in ill.proto.graph.initializer]
    assert len(weights) == 3
    exact = low = ill.sample(0)["x"]
    low = FP16.round(low)
    for step, tensor in zip(path, ill.proto.graph.initializer, strict=True):
        weight = np.frombuffer(tensor.raw_data, np.float32).reshape(16, 16)
        exact, low = exact @ weight, FP16.round(low @ FP16.round(weight))
        difference = (low - exact).astype(np.float64)
        expected = np.sqrt(np.square(difference).mean() / np.square(exact).mean())
        assert step.error == pytest.approx(expected, rel=0.05)


def test_what_a_node_inherits_is_the_error_of_its_inputs():
    path = followed(models.deep(layers=4))
    assert path[0].inherited == 0
    for before, after in pairwise(path):
        assert after.inherited == before.error


def test_moving_nodes_hand_errors_on_and_have_no_step():
    sketch = Sketch()
    x = sketch.input("x", [1, 16])
    scaled = sketch.op("Mul", x, f32(1 / 3), name="scale")
    moved = sketch.op("Transpose", scaled, name="turn", perm=[1, 0])
    y = sketch.op("Abs", moved, name="abs")
    path = followed(models.Ill(sketch.proto(y), {"x": models.signals(1, 16, seed=1)}))
    assert [step.node for step in path] == ["scale", "abs"]
    assert path[1].inherited == path[0].error > 0


def test_an_overflow_is_an_infinite_error_that_others_inherit():
    path = {step.node: step for step in followed(models.layer_norm())}
    assert path["square"].error == np.inf
    assert path["variance"].inherited == np.inf
    assert path["centre"].error < 1e-2


def test_kept_nodes_add_no_error():
    ill = models.layer_norm()
    path = {step.node: step for step in followed(ill, names(*ill.kept))}
    assert path["square"].error < 1e-2


def test_nothing_low_no_error():
    ill = models.deep(layers=3)
    path = followed(ill, names("rotate_0", "rotate_1", "rotate_2"))
    assert [step.error for step in path] == [0, 0, 0]


def test_shapes_that_depend_on_values_may_differ():
    """1.0001 is above 1 in FP32 and not in FP16, so one element fewer is picked."""
    sketch = Sketch()
    x = sketch.input("x", [4])
    above = sketch.op("Greater", x, f32(1.0), name="above")
    picked = sketch.op("Compress", x, above, name="pick")
    y = sketch.op("Mul", picked, f32(2.0), name="double")
    ill = models.Ill(sketch.proto(y), {"x": f32([[1.0001, 2.0, 3.0, 0.5]] * 2)})
    (step,) = [s for s in followed(ill) if s.node == "double"]
    assert step.error == np.inf


def test_infinities_of_the_reference_are_no_error():
    sketch = Sketch()
    x = sketch.input("x", [4])
    log = sketch.op("Log", sketch.op("Relu", x, name="relu"), name="log")
    y = sketch.op("Exp", log, name="exp")
    ill = models.Ill(sketch.proto(y), {"x": f32([[1.5, 2.0, -3.0, 0.5]] * 2)})
    path = {step.node: step for step in followed(ill)}
    assert path["log"].error < 1e-3
    assert path["exp"].error < 1e-2


def test_a_signal_of_zero_that_stays_zero_has_no_error():
    sketch = Sketch()
    x = sketch.input("x", [4])
    y = sketch.op(
        "Add", sketch.op("Mul", x, f32(0.0), name="nothing"), f32([1e-9] * 4), name="tiny"
    )
    ill = models.Ill(sketch.proto(y), {"x": f32([[1.0, 2.0, 3.0, 4.0]] * 2)})
    path = {step.node: step for step in followed(ill)}
    assert path["nothing"].error == 0
    assert path["tiny"].error == 1


def test_any_number_of_tensors_at_a_time(monkeypatch):
    ill = models.deep(layers=5)
    whole = followed(ill)
    monkeypatch.setattr(following, "TENSORS", 2)
    assert followed(ill) == whole


def test_behind_a_node_that_fails_the_error_is_infinite():
    errors = {step.node: step.error for step in followed(models.detector())}
    assert errors["scores"] == 1
    assert errors["head"] == inf
    kept = names("square", "energy", "norm")
    assert max(step.error for step in followed(models.detector(), kept)) < 0.01


def test_what_a_body_reads_from_outside_is_inherited():
    s = Sketch()
    scaled = s.op("Mul", s.input("x", [2, 4]), f32(1 / 3), name="scale")
    branches = {}
    for name in ("then_branch", "else_branch"):
        inner = helper.make_node("Abs", [scaled], [f"{name}_y"])
        branches[name] = graph(name, [inner], (), [(f"{name}_y", MATRIX)])
    flag = s.input("flag", [], BOOL)
    s.nodes.append(helper.make_node("If", [flag], ["chosen"], "choose", **branches))
    data = {"x": models.signals(2, 4, seed=1), "flag": np.full(models.COUNT, True)}
    path = followed(models.Ill(s.proto("chosen"), data))
    assert [step.node for step in path] == ["scale", "choose"]
    assert path[1].inherited == path[0].error > 0


PLANT = names("shift", "back")


def rotation(generator):
    return f32(np.linalg.qr(generator.normal(size=(16, 16)))[0])


def plant(s: Sketch, value: str) -> str:
    """Add 3000 and take it away again: what is stored between has a spacing of 2."""
    return s.op("Sub", s.op("Add", value, f32(3000.0), name="shift"), f32(3000.0), name="back")


def decoy(s: Sketch, value: str, kind: str, i: int) -> str:
    """Add a branch whose error is large to its own scale, and that no output feels."""
    if kind == "mean":
        mean = s.op("ReduceMean", value, name=f"mean_{i}", axes=[-1])
        rest = s.op("Mul", s.op("Sub", mean, mean, name=f"rest_{i}"), 1e-6, name=f"tiny_{i}")
        branch = s.op("Add", rest, s.op("Mul", mean, 1e-6, name=f"little_{i}"), name=f"sum_{i}")
    else:
        hidden = s.op("Mul", f32([0.0] * 8 + [1.0] * 8), f32(-65504.0), name=f"fill_{i}")
        scores = s.op("Sub", hidden, s.op("Abs", value, name=f"abs_{i}"), name=f"mask_{i}")
        twice = s.op("Add", scores, hidden, name=f"twice_{i}")
        soft = s.op("Softmax", twice, name=f"softmax_{i}", axis=-1)
        branch = s.op("Mul", soft, 1e-3, name=f"weigh_{i}")
    return s.op("Add", value, branch, name=f"join_{i}")


def ill_graph(seed: int, steps: list[str], at: int | None) -> models.Ill:
    generator, s = np.random.default_rng(seed), Sketch()
    value = s.input("x", [1, 8, 16])
    for i, step in enumerate(steps):
        if i == at:
            value = plant(s, value)
        if step == "rotate":
            value = s.op("MatMul", value, rotation(generator), name=f"rotate_{i}")
        elif step == "turn":
            value = s.op("Reshape", value, [1, 8, 16], name=f"turn_{i}")
        else:
            value = decoy(s, value, step, i)
    y = s.op("MatMul", value, rotation(generator), name="end")
    return models.Ill(s.proto(y), {"x": models.signals(1, 8, 16, seed=seed, count=1)})


def low_model(prepared: Prepared, kept):
    full = kept | carried(prepared.network, prepared.roles, kept)
    return emulate_typed(rewrite(prepared.network, prepared.roles, full, FP16).model)


def errors_of(bench: Bench[Kept], kept: Kept) -> list[float]:
    return [*bench.contributions(kept, range(len(bench.samples)))]


def followed_of_origin(prepared: Prepared, *fp32: str) -> Followed:
    kept = names(*fp32)
    bench = prepared.bench()
    errors = errors_of(bench, kept)
    path = growth(
        prepared.network,
        low_model(prepared, kept),
        computed(prepared.network, prepared.roles),
        prepared.samples[errors.index(max(errors))],
    )
    return follow(prepared.network, prepared.roles, bench.contributions, kept, errors, path)


def error(prepared: Prepared, kept) -> float:
    """Return the largest error over the largest value of the output, by another emulation."""
    expected = prepared.references[0]["end_out"]
    actual = Session(low_model(prepared, kept)).run(prepared.samples[0])["end_out"]
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


STEPS = st.lists(st.sampled_from(["rotate", "turn", "mean", "mask"]), min_size=2, max_size=6)


@given(st.integers(0, 2**16), STEPS, st.data())
def test_a_planted_origin_is_named_or_none_is(seed, steps, data):
    at = data.draw(st.integers(0, len(steps) - 1))
    # What is half of the low nodes is named, more is not.
    prepared = prepare(ill_graph(seed, [*steps, "rotate"], at))
    found = followed_of_origin(prepared)
    assert found.origin is not None
    assert found.origin.node in PLANT
    assert set(found.origin.kept) >= PLANT
    assert found.origin.error <= MOST * found.error


@given(st.integers(0, 2**16), STEPS)
def test_whatever_is_named_undoes_the_error(seed, steps):
    """Measured by the other emulation, and told with the right numbers."""
    prepared = prepare(ill_graph(seed, steps, None))
    found = followed_of_origin(prepared)
    assert found.error == pytest.approx(100 * error(prepared, names()), rel=1e-4)
    if found.origin is not None:
        assert not {n for n in found.origin.kept if n.startswith(("mean", "mask"))}
        remaining = error(prepared, frozenset(found.origin.kept))
        assert found.origin.error == pytest.approx(100 * remaining, rel=1e-4)
        assert remaining <= MOST * error(prepared, names()) * (1 + 1e-4)


def test_a_relative_error_that_no_output_feels_is_no_origin():
    """Of the mean's difference all is error; keeping it changes next to nothing."""
    prepared = prepare(ill_graph(1, ["rotate"] * 4 + ["mean"] + ["rotate"] * 4, None))
    found = followed_of_origin(prepared)
    assert found.origin is None
    assert found.tried


def test_a_mask_that_becomes_infinite_is_no_origin():
    steps = ["rotate"] * 4 + ["mask"] + ["rotate"] * 4
    prepared = prepare(ill_graph(2, steps, None))
    low = Session(low_model(prepared, names()))
    assert np.isfinite(low.run(prepared.samples[0])["end_out"]).all()
    found = followed_of_origin(prepared)
    assert "twice_4" in found.tried
    assert found.origin is None


def test_an_overflow_is_the_origin_of_an_infinite_error():
    generator, s = np.random.default_rng(3), Sketch()
    value = s.input("x", [1, 8, 16])
    for i in range(3):
        value = s.op("MatMul", value, rotation(generator), name=f"before_{i}")
    large = s.op("Relu", s.op("Mul", value, 5e3, name="enlarge"), name="relu")
    value = s.op("Mul", s.op("Mul", large, 60.0, name="more"), 1e-5, name="reduce")
    for i in range(3):
        value = s.op("MatMul", value, rotation(generator), name=f"after_{i}")
    found = followed_of_origin(
        prepare(models.Ill(s.proto(value), {"x": models.signals(1, 8, 16, seed=5, count=1)}))
    )
    assert found.error == np.inf
    assert found.origin is not None
    assert (found.origin.node, found.origin.kept) == ("more", ("more", "reduce"))
    assert found.origin.error < 1


def test_error_that_accumulates_has_no_origin():
    found = followed_of_origin(prepare(models.deep(layers=10)))
    assert found.origin is None
    assert found.accumulates


@pytest.mark.parametrize(("at", "error", "expected"), [(3, 4, True), (3, 5, False), (0, 9, True)])
def test_one_step_that_multiplies_an_error_is_no_accumulation(at, error, expected):
    """Roundings at most triple what is read; the last step here has far more anyway."""
    unit, errors = 1e-3, [1, 1, 1.2, 1.4, 1.5, 90]
    path = [
        Growth(node=NodeName(str(i)), error=unit * e, inherited=unit * e / 1.5 if i else 0)
        for i, e in enumerate(errors)
    ]
    inherited = unit if at else 0
    path[at] = path[at].model_copy(update={"error": unit * error, "inherited": inherited})
    assert following.accumulates(path) is expected


def test_an_error_that_a_node_enlarges_starts_there_with_what_it_reads():
    s = Sketch()
    value = s.op("MatMul", s.input("x", [1, 16]), rotation(np.random.default_rng(5)), name="turn")
    value = s.op("Add", value, f32(3000.0), name="shift")
    y = s.op("Softmax", value, name="choose", axis=-1)
    for i in range(2):
        y = s.op("MatMul", y, rotation(np.random.default_rng(i)), name=f"end_{i}")
    found = followed_of_origin(
        prepare(models.Ill(s.proto(y), {"x": models.signals(1, 16, seed=1)}))
    )
    assert found.origin is not None
    assert (found.origin.node, found.origin.kept) == ("choose", ("shift", "choose"))


def test_nothing_wrong_has_no_origin():
    ill = models.deep(layers=3)
    found = followed_of_origin(prepare(ill), "rotate_0", "rotate_1", "rotate_2")
    assert (found.error, found.origin, found.accumulates) == (0, None, False)
    assert found.kept == ("rotate_0", "rotate_1", "rotate_2")


def gated(*gates: tuple[float, float]) -> models.Ill:
    """A sample for each pair of gates: they let in what is added and taken away at two places."""
    generator, s = np.random.default_rng(11), Sketch()
    value, gate = s.input("x", [1, 8, 16]), s.input("gate", [1, 2, 1])
    for i, size in enumerate((3000.0, 3900.0)):
        gate_of = s.op("Slice", gate, [i], [i + 1], [1], name=f"own_{i}")
        large = s.op("Mul", gate_of, size, name=f"large_{i}")
        value = s.op("MatMul", value, rotation(generator), name=f"rotate_{i}")
        value = s.op("Add", value, large, name=f"add_{i}")
        value = s.op("Sub", value, large, name=f"sub_{i}")
    y = s.op("MatMul", value, rotation(generator), name="end")
    x = models.signals(1, 8, 16, seed=12, count=len(gates))
    return models.Ill(s.proto(y), {"x": x, "gate": f32(gates).reshape(-1, 1, 2, 1)})


def test_an_origin_on_the_worst_sample_alone_is_none():
    """Each sample has its own place; what undoes one error leaves the other as it is."""
    for gates in (((1, 0), (0, 1)), ((0, 1), (1, 0))):
        alone = followed_of_origin(prepare(gated(gates[0])))
        assert alone.origin is not None
        found = followed_of_origin(prepare(gated(*gates)))
        assert found.tried
        assert found.origin is None
        assert found.samples == 2


def test_an_origin_on_all_samples_is_named_with_the_largest_errors():
    prepared = prepare(gated((1, 0), (0.5, 0), (0, 0), (1, 0)))
    found = followed_of_origin(prepared)
    assert found.samples == 4
    assert found.origin is not None
    assert found.origin.node in names("add_0", "sub_0")
    bench = prepared.bench()
    assert found.error == max(errors_of(bench, names())) > 1
    remaining = errors_of(bench, frozenset(found.origin.kept))
    assert found.origin.error == max(remaining) <= MOST * found.error


def steps_of(count: int, inherited: float) -> list[Growth]:
    return [
        Growth(node=NodeName(f"rotate_{i}"), error=1.0 + i, inherited=inherited * i)
        for i in range(count)
    ]


@given(st.integers(0, 2**16), st.integers(1, 4), st.floats(0.1, 10))
def test_whatever_is_named_undoes_the_error_on_all_samples(seed, samples, scale):
    """Other roundings anywhere give other errors everywhere."""

    def drawn(kept: Kept, indices: Iterable[int]) -> Iterator[float]:
        random = np.random.default_rng([seed, *(ord(c) for c in "".join(sorted(kept)))])
        errors = scale * random.lognormal(size=samples)
        return (float(errors[i]) for i in indices)

    prepared, every = prepare(models.deep(layers=8)), range(samples)
    before, path = [*drawn(names(), every)], steps_of(8, 0.0)
    found = follow(prepared.network, prepared.roles, drawn, names(), before, path)
    assert found.error == max(before)
    if found.origin is None:
        assert len(found.tried) == 8
        return
    after = [*drawn(frozenset(found.origin.kept), every)]
    assert found.origin.error == max(after) <= MOST * max(before)
    for was, remains in zip(before, after, strict=True):
        assert remains <= max(MOST * was, 1)


@pytest.mark.parametrize(
    ("needed", "kept"),
    [
        (("rotate_0",), ("rotate_0",)),
        (("rotate_0", "rotate_1"), ("rotate_0", "rotate_1")),
        # The first step alone makes an error that it does not inherit.
        (("rotate_1",), ("rotate_1",)),
        (("rotate_1", "rotate_2"), ("rotate_1", "rotate_2")),
        (("rotate_2",), ("rotate_2",)),
    ],
)
def test_a_node_that_its_readers_do_not_need_is_no_origin(needed, kept):
    """The error falls from 2 to 0.4 once these are all FP32."""

    def undone(kept: Kept, indices: Iterable[int]) -> Iterator[float]:
        return (0.4 if names(*needed) <= kept else 2.0 for _ in indices)

    prepared, path = prepare(models.deep(layers=8)), steps_of(8, 1.0)
    found = follow(prepared.network, prepared.roles, undone, names(), [2.0, 2.0], path)
    assert found.origin is not None
    assert (found.origin.node, found.origin.kept, found.origin.error) == (kept[0], kept, 0.4)


@pytest.mark.parametrize("runs", [0, 1, 3])
def test_without_time_what_was_tried_is_told(runs):
    remaining = iter(range(runs))
    prepared = prepare(gated((1, 0), (0, 1)))
    places = [f"{kind}_{i}" for kind in ("add", "sub", "rotate") for i in range(2)]
    path = [Growth(node=NodeName(n), error=1, inherited=0) for n in places]
    bench = prepared.bench()
    before = errors_of(bench, names())

    def ending(kept: Kept, indices: Iterable[int]) -> Iterator[float]:
        for error in bench.contributions(kept, indices):
            if next(remaining, None) is None:
                raise OutOfTime
            yield error

    whole, found = (
        follow(prepared.network, prepared.roles, each, names(), before, path)
        for each in (bench.contributions, ending)
    )
    assert whole.tried == tuple(places)
    assert not whole.out_of_time
    assert found.out_of_time
    assert found.tried == whole.tried[: len(found.tried)]
    assert len(found.tried) <= runs
    assert found.origin is None
    assert not found.accumulates
