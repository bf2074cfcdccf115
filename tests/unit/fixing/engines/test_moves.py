from halfwise.fixing.engines.candidates import Budget
from halfwise.fixing.engines.moves import EngineMoves
from tests import models
from tests.fake_tensorrt.faults import Fault
from tests.models import Ill
from tests.unit.casing import names
from tests.unit.graph.sketch import Sketch

KEPT = names(*models.layer_norm().kept)
NOTHING = names()


def moves(ready, left=6, ruled=NOTHING):
    planner, attempts = ready.fixed.planner, ready.attempts
    made = EngineMoves(
        planner, ready.run.measure, attempts.marked, Budget(left), ready.notes, ruled
    )
    return made, attempts


def test_where_the_engine_departs_comes_first(stage):
    ready = stage(models.layer_norm(), lossy={"gamma": 1.5})
    made, attempts = moves(ready)
    failed = attempts.attempt(KEPT, "mixed")
    assert not failed.passed
    (_, first), *rest = made.culprits(failed)
    assert "gamma" in first
    assert not first & KEPT
    assert made.budget.left == 6 - 1
    assert any("departs from the emulation" in note for note in ready.notes)
    assert len(rest) >= 2


def test_what_fusion_leaves_is_shown_where_tensorrt_can(stage):
    ready = stage(models.layer_norm(), lossy={"gamma": 1.5}, version="10.16.1.11")
    made, attempts = moves(ready)
    failed = attempts.attempt(KEPT, "mixed")
    (step, first), *_ = made.culprits(failed)
    assert "departs from the emulation" in step
    assert "gamma" in first
    assert made.budget.left == 6 - 1
    shown = ready.run.builds.outcomes[-1]
    assert shown.config.unfused
    assert shown.config.outputs == ()


def test_where_what_is_kept_changes_nothing_wider_islands_come_before_the_guards(stage):
    ready = stage(models.layer_norm(), lossy={"gamma": 1.5})
    made, attempts = moves(ready, left=1)
    failed = attempts.attempt(names("square"), "mixed")

    def steps(**how):
        return [step.partition(":")[0] for step, _ in made.culprits(failed, **how)]

    assert steps()[0] == "what guards are certain about"
    assert steps(idle=True)[0] == "wider islands"
    assert sorted(steps()) == sorted(steps(idle=True))


def test_without_builds_left_the_guards_are_asked(stage):
    ready = stage(models.layer_norm(), lossy={"gamma": 1.5})
    made, attempts = moves(ready, left=1)
    steps = dict(made.culprits(attempts.attempt(names("square"), "mixed")))
    assert steps["what guards are certain about"] == KEPT - {"square"}
    assert made.budget.left == 1


def test_an_engine_with_marks_that_crashes_tells_nothing(stage):
    ready = stage(models.layer_norm(), lossy={"gamma": 1.5}, faults=[Fault("build", "segv", (2,))])
    made, attempts = moves(ready)
    (step, _), *_ = made.culprits(attempts.attempt(KEPT, "mixed"))
    assert "guards" in step


def test_regions_are_widened_and_nothing_lowered_is_kept(stage):
    region = ("square", "variance", "eps", "root", "divide")
    fault = Fault("build", "foreign", nodes=region)
    ready = stage(models.layer_norm(), faults=[fault])
    made, attempts = moves(ready)
    sets = dict(made.unbuildable(attempts.attempt(KEPT, "mixed")))
    assert any(keep >= names(*region) for keep in sets.values())
    assert any(keep > KEPT for _, keep in made.wider(KEPT))


def test_what_a_rule_lowers_is_never_kept(stage):
    region = ("square", "variance", "eps", "root", "divide")
    fault = Fault("build", "foreign", nodes=region)
    ready = stage(models.layer_norm(), options={"lower": ["divide"]}, faults=[fault])
    made, attempts = moves(ready)
    failed = attempts.attempt(KEPT, "mixed")
    sets = [keep for found in (made.unbuildable(failed), made.wider(KEPT)) for _, keep in found]
    assert sets
    assert not any("divide" in keep for keep in sets)


def test_what_a_rule_keeps_is_always_kept(stage):
    fault = Fault("build", "foreign", nodes=("square", "variance", "eps", "root", "divide"))
    ready = stage(models.layer_norm(), faults=[fault])
    made, attempts = moves(ready, ruled=names("root"))
    sets = [keep for _, keep in made.unbuildable(attempts.attempt(KEPT, "mixed"))]
    assert sets
    assert all("root" in keep for keep in sets)


def test_the_sample_that_is_furthest_off_is_looked_into(stage):
    # A kernel that is wrong where values are large, which they are in one sample only.
    s = Sketch()
    small = s.op("Clip", s.input("x", [1, 16]), -1.0, 1.0, name="small")
    large = s.op("Sub", "x", small, name="large")
    ill = Ill(
        s.proto(s.op("Add", small, s.op("Mul", large, 3.0, name="steep"), name="add")),
        {"x": models.signals(1, 16, seed=3, peak=1, count=8)},
    )
    ill.inputs["x"][4] *= 10
    ready = stage(ill, lossy={"steep": 1.5})
    made, attempts = moves(ready)
    (step, first), *_ = made.culprits(attempts.attempt(NOTHING, "plain"))
    assert "departs" in step
    assert "steep" in first
