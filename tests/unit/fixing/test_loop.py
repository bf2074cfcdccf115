"""The loop over small models, without files."""

from functools import partial
from math import inf

import numpy as np
import pytest
from onnx import TensorProto

from halfwise.emulation import budget as bounded
from halfwise.emulation.budget import Budget, OutOfTime
from halfwise.emulation.ort import Session
from halfwise.emulation.probe import ExtremaProbe
from halfwise.emulation.switched import SwitchedRunner
from halfwise.errors import RunFailed, UsageError
from halfwise.fixing import depths, loop
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.loop import end_remarks, fix
from halfwise.fixing.plan.plan import NONE
from halfwise.fixing.plan.search import MOST_FAILURES
from halfwise.graph.model import constant_array
from halfwise.graph.weights import MappedTensor
from halfwise.judging.judge import judge_outputs
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Interruption, Silent, offered
from halfwise.records import Failure, replace
from halfwise.reporting.remarks import reasons, remark
from tests import models
from tests.unit.fixing.repair.sluices import WIDE, sluiced
from tests.unit.fixing.running import (
    Clock,
    Listener,
    found,
    growing,
    kept,
    space_of,
    types_in,
)
from tests.unit.graph.sketch import Sketch, f32

pytestmark = pytest.mark.usefixtures("unrepaired")


@pytest.fixture(scope="module")
def normal():
    return found(models.layer_norm())


def test_the_plan_is_what_the_model_needs(normal):
    assert kept(normal) == models.layer_norm().kept
    assert normal.plan.minimal
    assert normal.verdict.passed
    assert not normal.baseline.passed
    assert normal.verdict.samples == ("inputs[3]", "inputs[7]")
    assert normal.search.calibration == tuple(f"inputs[{i}]" for i in (0, 1, 2, 4, 5, 6))
    assert normal.search.joined == ()
    assert normal.search.tolerance_factor == 0.8


def test_the_model_is_that_of_the_plan(normal):
    types = types_in(normal)
    for node in ("square", "variance", "eps", "root"):
        assert types[f"{node}_out"] == "FLOAT"
    assert types["centre_out"] == "FLOAT16"
    assert normal.plan.casts == normal.rewritten.casts


def test_every_kept_node_was_seen_to_be_needed(normal):
    assert all(k.error_without is not None and k.error_without > 1 for k in normal.plan.keep)
    for k in normal.plan.keep:
        assert k.because is not None
        assert k.because.guard is not None
        assert k.guard == normal.guards[k.because.guard].kind


def test_the_work_is_counted(normal):
    assert 0 < normal.evaluations < 30
    assert list(normal.stage_seconds) == [
        *("reference", "observe", "emulate", "baseline", "search", "judge"),
        "curve",
    ]
    assert len(normal.space.bench.references) == 6
    assert len(normal.space.evidence.observations.samples) == 6


def test_a_model_that_needs_nothing_keeps_nothing():
    fixed = found(models.small())
    assert kept(fixed) == set()
    assert fixed.baseline.passed
    assert fixed.plan.minimal
    assert fixed.growth == ()


def many(ill: models.Ill) -> models.Ill:
    """The same model with sixteen samples, of which twelve calibrate."""
    every = {name: np.concatenate([a, a * f32(0.9)]) for name, a in ill.inputs.items()}
    return models.Ill(ill.proto, every, ill.kept)


def looked_at(fixed: Fixed) -> set[int]:
    return {
        o.detail.samples for o in fixed.space.evidence.observations.tensors if o.detail is not None
    }


def test_elements_are_looked_at_on_few_samples_and_ranges_are_of_all():
    fixed = found(many(models.layer_norm()))
    assert looked_at(fixed) == {4}
    assert len(fixed.space.evidence.observations.samples) == 12


def test_a_heldout_sample_that_fails_joins_and_others_judge():
    listener = Listener()
    ill = growing(7)
    fixed = found(ill, listener)
    assert kept(fixed) == ill.kept
    assert fixed.search.joined == ("inputs[7]",)
    assert fixed.search.calibration[-1] == "inputs[7]"
    assert fixed.verdict.samples == ("inputs[3]", "inputs[11]")
    assert fixed.verdict.passed
    assert fixed.verdict.unseen
    assert fixed.plan.minimal
    assert any("joining the calibration" in note for note in listener.notes)
    # What overflows does so in that sample only, and yet the reasons name it.
    assert fixed.space.evidence.observations.samples == fixed.search.calibration
    assert all(k.guard for k in fixed.plan.keep)


def test_as_many_join_as_leave_some_to_judge():
    ill = growing()
    heldout = models.signals(1, 2, 16, seed=4, peak=1000, count=8)
    fixed = found(ill, heldout={"x": heldout})
    assert kept(fixed) == ill.kept
    assert len(fixed.search.joined) == 2
    assert len(fixed.verdict.samples) == 6
    assert set(fixed.search.joined).isdisjoint(fixed.verdict.samples)
    assert fixed.verdict.passed


def test_a_single_heldout_sample_that_fails_fails_the_verdict():
    ill = growing()
    fixed = found(ill, heldout={"x": models.signals(1, 2, 16, seed=4, peak=1000, count=1)})
    assert not fixed.verdict.passed
    assert fixed.search.joined == ()


def test_a_plan_that_passes_on_a_single_heldout_sample_is_taken_in_place_of_one_that_fails():
    s = Sketch()
    x = s.input("x", [2, 16])
    large = s.op("Sqrt", s.op("Mul", x, x, name="square"), name="root")
    small = s.op("Mul", x, 0.15, name="smaller")
    near = s.op("Sqrt", s.op("Mul", small, small, name="near_square"), name="near_root")
    y = s.op("Add", large, near, name="add")

    def signals(peak: float, count: int) -> np.ndarray:
        return models.signals(2, 16, seed=3, peak=peak, count=count)

    ill, beyond = (models.Ill(s.proto(y), {"x": signals(p, 4)}) for p in (1000, 3000))
    wide = found(beyond, no_repair=True)
    assert kept(found(ill, no_repair=True)) == {"square", "root"} < kept(wide)
    start = replace(wide.space.variant.case.network, model=wide.rewritten.model)
    fixed = found(ill, start=start, heldout={"x": signals(3000, 1)}, no_repair=True)
    assert fixed.verdict.passed
    assert fixed.search.joined == ()
    assert kept(fixed) == kept(wide)


def test_what_no_plan_can_pass_ends_without_joining():
    fixed = found(models.layer_norm(), lower=["square"])
    assert not fixed.verdict.passed
    assert fixed.search.joined == ()
    assert not fixed.plan.minimal
    assert "square" not in kept(fixed)
    assert fixed.growth


def test_a_single_sample_is_judged_but_proves_nothing():
    ill = models.layer_norm()
    fixed = found(models.Ill(ill.proto, {"x": ill.inputs["x"][:1]}))
    assert kept(fixed) == ill.kept
    assert not fixed.verdict.passed
    assert not fixed.verdict.unseen
    assert fixed.verdict.samples == fixed.search.calibration


def test_no_time_leaves_the_best_passing_plan():
    fixed = found(models.layer_norm(), time_budget=0)
    assert fixed.search.exhausted
    assert not fixed.plan.minimal
    assert kept(fixed) >= models.layer_norm().kept
    assert fixed.verdict.passed


def test_no_time_is_left_when_samples_join(monkeypatch):
    listener = Clock(monkeypatch, "joining the calibration")
    fixed = found(growing(7), listener)
    assert any("joining the calibration" in note for note in listener.notes)
    assert fixed.search.joined == ("inputs[7]",)
    assert fixed.search.exhausted
    assert not fixed.plan.minimal
    assert kept(fixed) >= growing().kept
    assert fixed.verdict.passed


def test_without_time_heldout_samples_that_fail_get_a_larger_plan(monkeypatch):
    """No node in FP32 passes on the calibration; the two large samples held out need some."""
    ill = growing(3, 7)
    fixed = found(ill, Clock(monkeypatch, "passes"))
    assert fixed.search.exhausted
    assert not fixed.search.joined
    assert kept(fixed) >= ill.kept
    assert fixed.verdict.passed
    assert not fixed.plan.minimal


def test_that_only_samples_of_the_search_need_a_plan_is_told():
    # 40,000 · x reaches the end of FP16's range within the headroom.
    s = Sketch()
    y = s.op("Mul", s.op("Mul", s.input("x", [1, 32]), f32(4e4), name="up"), f32(1 / 4e4))
    data = np.linspace(0.1, 0.9, 640, dtype=np.float32).reshape(20, 1, 32)
    data[:, :, -1] = 0.9
    fixed = found(models.Ill(s.proto(y), {"x": data}))
    assert kept(fixed)
    assert [r.kind for r in fixed.plan.remarks if r.kind == "seen-only"] == ["seen-only"]


def test_rules_hold_in_plan_and_model():
    fixed = found(models.layer_norm(), keep=["divide"], lower=["gamma"])
    assert kept(fixed) == models.layer_norm().kept | {"divide"}
    rules = {str(k.node): k.because.rule for k in fixed.plan.keep if k.because is not None}
    assert rules["divide"] == "--keep divide"
    assert fixed.plan.minimal


def test_rules_are_checked_before_the_work():
    listener = Listener()
    with pytest.raises(UsageError, match="matches no node"):
        found(models.layer_norm(), listener, keep=["absent"])
    assert listener.notes == []


def test_a_metric_keeps_the_margin_too():
    def of(drop):
        return found(models.layer_norm(), metric="snr", metric_drop=drop)

    anything = of(1000)
    assert anything.search.tolerance_factor == 0.8
    # No node is kept for the metric's sake, but nothing may be infinite inside.
    assert {k.guard for k in anything.plan.keep} == {"infinite"}
    assert all(k.error_without is None for k in anything.plan.keep)
    assert kept(of(60)) >= models.layer_norm().kept


class Load:
    """A clock of a machine that is so many times slower than another."""

    def __init__(self, monkeypatch, times: float) -> None:
        self._now, self._times = 0.0, times
        monkeypatch.setattr(loop, "Budget", partial(Budget, clock=self._clock))

    def _clock(self) -> float:
        self._now += self._times
        return self._now


def test_a_busy_machine_ends_the_search_at_the_same_work(monkeypatch):
    """Work ends it; what is tried, found and told is then the same at any speed."""
    results = []
    for times in (1e-6, 1e-2):
        Load(monkeypatch, times)
        fixed = found(models.deep(), rel_max=5e-4, budget=30)
        results.append((fixed.plan, fixed.search, fixed.space.tried(), fixed.evaluations))
    quiet, busy = results
    assert quiet == busy
    assert fixed.search.exhausted
    assert fixed.space.budget.ended_by == ["work"]


def test_the_work_of_a_run_is_in_inferences_over_the_data():
    """Twice as many samples are twice as much work, and as much of the budget."""
    signals = models.signals(*models.deep().inputs["x"].shape[1:], count=4, seed=1)
    spent = []
    for times in (1, 2):
        ill = models.Ill(models.deep().proto, {"x": np.concatenate([signals] * times)}, set())
        fixed = found(ill, heldout={"x": signals}, budget=1e3)
        spent.append(fixed.space.budget.spent / len(fixed.space.variant.case.calibration))
    assert spent[1] == pytest.approx(spent[0], rel=0.2)


def test_an_unfinished_certificate_is_not_called_minimal(monkeypatch):
    fixed = found(models.layer_norm(), Clock(monkeypatch, "search"))
    assert fixed.search.exhausted
    assert not fixed.plan.minimal
    assert fixed.verdict.passed


class Counted:
    """Lets so many evaluations pass that the budget bounds; the next ones are ended."""

    def __init__(self, monkeypatch, most: float = inf) -> None:
        self.bounded = self.free = 0
        real = bounded.call

        def call(work, stop, what):
            if bounded._now().until is None:
                self.free += 1
                return real(work, stop, what)
            self.bounded += 1
            if self.bounded > most:
                raise OutOfTime
            return real(work, stop, what)

        monkeypatch.setattr(bounded, "call", call)


ENDED = [
    (0, ["observe", "emulate", "search", "growth", "curve"]),
    (3, ["observe", "emulate", "search", "growth", "curve"]),
    (10, ["emulate", "search", "growth", "curve"]),
    (24, ["search", "growth", "curve"]),
    (40, ["search", "growth", "curve"]),
    (54, ["search", "sums", "growth", "curve"]),
    (64, ["growth", "curve"]),
    (77, ["curve"]),
]


@pytest.mark.parametrize(("most", "cut"), ENDED)
def test_wherever_the_budget_ends_an_evaluation_a_model_is_judged(monkeypatch, most, cut):
    Counted(monkeypatch, most)
    ill = models.deep()
    fixed = found(ill, rel_max=5e-4)
    assert fixed.space.budget.cut == cut
    assert fixed.verdict.passed
    assert fixed.verdict.unseen
    assert fixed.verdict.samples == ("inputs[3]", "inputs[7]")
    assert fixed.search.exhausted == ("search" in cut)
    assert fixed.plan.minimal == (not fixed.search.exhausted)
    assert len(fixed.plan.keep) == (10 if most < 50 else 9)


@pytest.mark.parametrize("at", ["searched", "held out"])
def test_what_no_plan_can_mend_fails_wherever_it_is(at):
    """An FP16 input cannot hold one sample; a held-out one joins, and the others pass."""
    s = Sketch()
    y = s.op("Mul", s.input("x", [1, 16]), f32([1e-3]), name="scale")
    searched, heldout = (models.signals(1, 16, seed=seed, count=8) for seed in (1, 2))
    (searched if at == "searched" else heldout)[1] *= 1e6
    ill = models.Ill(s.proto(y), {"x": searched}, set())
    fixed = found(ill, heldout={"x": heldout}, io="fp16")
    assert not fixed.verdict.passed
    assert "non-finite" in reasons(fixed.verdict.failures)[-1]


def test_without_time_what_needs_nothing_keeps_nothing():
    fixed = found(models.deep(), time_budget=0)
    assert fixed.verdict.passed
    assert fixed.search.exhausted
    assert not fixed.plan.keep


def test_what_is_always_done_is_what_the_documentation_says(monkeypatch):
    """6 samples are searched on, 2 held out; nothing is suspected that leads to infinities."""
    counted = Counted(monkeypatch, most=0)
    fixed = found(models.deep(), rel_max=5e-4, time_budget=0)
    assert fixed.verdict.passed
    assert counted.bounded == 0
    sessions = counted.free - 6 - 3 * 2 - 2
    assert 0 < sessions <= 10


def test_late_plans_that_fail_on_heldout_samples_are_few(monkeypatch):
    """Every judged plan fails on held-out samples, and there is no time to let them join."""
    looked = []

    def failing(*args, **kwargs):
        judged = judge_outputs(*args, **kwargs)
        looked.append(judged)
        wrong = (Failure(kind="batch", names={"why": "planted"}),)
        verdict = replace(judged.verdict, passed=False, failures=wrong)
        return replace(judged, verdict=verdict, failing=(0,))

    monkeypatch.setattr(depths, "judge_outputs", failing)
    heldout = models.signals(1, 2, 16, seed=4, peak=50, count=30)
    fixed = found(growing(), heldout={"x": heldout}, time_budget=0)
    assert not fixed.verdict.passed
    assert len(looked) <= 2 + MOST_FAILURES
    assert fixed.search.exhausted
    assert not fixed.search.joined


class Pressed(Listener):
    """Presses Ctrl-C once there is something to keep, where that is told or later."""

    def __init__(self, made: Interruption, words: str) -> None:
        super().__init__()
        self._made, self._words = made, words

    def note(self, line: str) -> None:
        super().note(line)
        if self._words in line:
            assert self._made.take()

    def stage(self, name: str, total: int | None = None) -> None:
        del total
        if name == self._words:
            assert self._made.take()


@pytest.mark.parametrize("words", ["best plan so far", "passes with"])
def test_ctrl_c_ends_the_search_with_the_best_plan_so_far(words):
    with offered() as made:
        fixed = found(sluiced(*[1.0] * 3, WIDE, *[1.0] * 3), Pressed(made, words))
    assert made.asked
    assert fixed.space.budget.ended_by == ["interrupt"]
    assert fixed.verdict.passed
    assert fixed.verdict.unseen
    assert (fixed.search.exhausted, fixed.plan.minimal) == (True, False)
    assert fixed.space.tried()[fixed.result.kept].passed
    assert len(fixed.result.kept) < len(fixed.space.choices)


class Steps(Silent):
    """Remembers the stages that told steps."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def stage(self, name: str, total: int | None = None) -> None:
        del total
        self._stage = name

    def step(self, done: int, total: int | None = None, of: str = "") -> None:
        del of
        assert total is not None
        assert done <= total
        self.told.append(self._stage)


def test_following_the_error_tells_how_far_it_is():
    watcher = Steps()
    fixed = found(models.deep(), watcher, rel_max=5e-4)
    assert "growth" in watcher.told
    assert "growth" in fixed.stage_seconds


def test_the_same_case_gives_the_same_result(normal):
    again = found(models.layer_norm())
    assert (again.plan, again.verdict, again.search) == (normal.plan, normal.verdict, normal.search)


@pytest.mark.parametrize("accumulate", ["fp32", "fp16"])
def test_weights_on_disk_lead_to_the_same(tmp_path, accumulate):
    ill = models.large_weights()
    path = models.saved_beside(ill, tmp_path)
    request = understand(dict(ill.inputs), {"accumulate": accumulate})
    case = load_case(path, request.data, request.criterion)
    memory = fix(case, request.settings, Silent())
    disk = fix(case, replace(request.settings, large_from=0), Silent())
    assert kept(disk) == ill.kept
    assert disk.plan == memory.plan
    assert disk.verdict == memory.verdict
    assert disk.baseline == memory.baseline
    stored, expected = (f.rewritten.model.graph.initializers for f in (disk, memory))
    assert list(stored) == list(expected)
    for name, value in stored.items():
        assert value.dtype == expected[name].dtype
        assert constant_array(value).tobytes() == constant_array(expected[name]).tobytes()
    assert isinstance(stored["out_w"].const_value, MappedTensor)
    assert constant_array(stored["out_w"]).dtype == np.float16


def exported(low: int):
    sketch = Sketch()
    x = sketch.input("x", [1, 16], low)
    wide = sketch.op("Exp", sketch.op("Cast", x, name="up", to=1), name="island")
    y = sketch.op("Relu", sketch.op("Cast", wide, name="down", to=low), name="relu")
    return models.Ill(sketch.proto(y), {"x": models.signals(1, 16, seed=1, peak=1e5) - 1e5})


def test_islands_and_types_of_inputs_and_outputs_are_those_of_the_file():
    space = space_of(exported(TensorProto.FLOAT16))
    assert space.variant.of_file == {"island"}
    assert space.islands == frozenset()
    space = space_of(exported(TensorProto.FLOAT16), keep_islands=True)
    assert space.islands == space.variant.forced.kept.keys() == {"island"}
    assert space.variant.low_io == {"x", "relu_out"}
    (found,) = end_remarks(space)
    assert remark(found).startswith("Input x reaches 200000 and is FP16")
    space = space_of(exported(TensorProto.BFLOAT16))
    assert space.variant.low_io == frozenset()
    assert list(map(remark, end_remarks(space))) == [
        "FP32 in the mixed model although the file stores them low, in another format than FP16: "
        "relu_out, x."
    ]
    low = space_of(exported(TensorProto.BFLOAT16), io="fp16")
    assert low.variant.low_io == {"x", "relu_out"}


def test_a_plan_that_fails_with_branches_runs_without_them_from_then_on(monkeypatch):
    """As on a GPU, where branches fail now and then: each session takes half a second there."""
    low, other = space_of(models.layer_norm()), space_of(models.layer_norm())
    expected = other.excess(NONE), other.excess(other.choices)
    asked, loaded = [], []

    def fails(*_):
        asked.append(True)
        raise RunFailed("a fault of a branch", "")

    monkeypatch.setattr(SwitchedRunner, "run", fails)

    def load(*of, **options):
        loaded.append(True)
        return Session(*of, **options)

    monkeypatch.setattr(loop, "Session", load)
    assert (low.excess(NONE), low.excess(low.choices)) == expected
    assert len(asked) == len(loaded) == 2


def test_one_session_shows_the_reference_and_what_is_observed(monkeypatch):
    probed, load = [], ExtremaProbe._load

    def seen(probe):
        probed.append(probe._model)
        return load(probe)

    monkeypatch.setattr(ExtremaProbe, "_load", seen)
    fixed = found(models.layer_norm(), strict=True)
    model = fixed.space.variant.case.network.model
    assert sum(one is model for one in probed) == 1
