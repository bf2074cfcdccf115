"""Where an engine departs, on chains of nodes of which one computes something else."""

import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.emulation.runner import ModelRunner
from halfwise.fixing.engines.proposals import MARKED, Budget, Proposals, localise
from halfwise.graph.model import Network
from halfwise.graph.roles import roles_of
from tests import models
from tests.fake_tensorrt.faults import Fault
from tests.models import Ill
from tests.unit.casing import names
from tests.unit.graph.sketch import Sketch

LENGTH = 50
SAMPLE = {"x": np.linspace(1, 2, 8, dtype=np.float32)}
ONE = Samples(("sample",), lambda _: SAMPLE)


def chain(*, wrong: int | None = None, factor: float = 1.5, broken: int | None = None) -> Network:
    s = Sketch()
    x = s.input("x", [8] if broken is None else ["n"])
    for i in range(LENGTH):
        if i == broken:
            x = s.op("Reshape", x, [3, 3], name="broken")
        x = s.op("Add", x, factor if i == wrong else 0.0, name=f"add{i}")
    return s.network(x)


def found(engine: Network | None, *, emulation: Network | None = None, rounds: int = 2):
    network = chain()
    asked: list[int] = []

    def run_marked(names):
        asked.append(len(names))
        if engine is None:
            return None
        return next(ModelRunner(engine.model, ONE).get(names))

    wrong = (emulation or network).model
    departure = localise(network, roles_of(network), wrong, SAMPLE, run_marked, rounds=rounds)
    assert all(count <= MARKED for count in asked)
    assert len(asked) <= rounds
    return departure


@pytest.mark.parametrize("wrong", [0, 1, 7, 24, 48, 49])
def test_the_wrong_node_is_among_few(wrong):
    departure = found(chain(wrong=wrong))
    assert f"add{wrong}" in departure.nodes
    assert len(departure.nodes) <= 2
    assert departure.builds == 2
    assert departure.error > 0.1 > departure.predicted
    assert found(chain(wrong=wrong), rounds=3).nodes == (f"add{wrong}",)


def test_one_build_tells_less():
    departure = found(chain(wrong=20), rounds=1)
    assert "add20" in departure.nodes
    assert 1 < len(departure.nodes) <= -(-LENGTH // MARKED)


def test_what_the_emulation_has_too_is_no_departure():
    assert found(chain(wrong=3), emulation=chain(wrong=3)) is None


def test_an_engine_that_is_right():
    assert found(chain()) is None
    assert found(chain(wrong=3, factor=1e-4)) is None


def test_no_engine():
    assert found(None) is None


def test_marks_that_make_the_engine_right_leave_what_is_known():
    network, engines = chain(), [chain(wrong=20), chain()]

    def run_marked(names):
        return next(ModelRunner(engines.pop(0).model, ONE).get(names))

    departure = localise(network, roles_of(network), network.model, SAMPLE, run_marked, rounds=2)
    assert departure is not None
    assert "add20" in departure.nodes
    assert departure.builds == 2


def test_an_emulation_that_cannot_be_run_to_the_end_serves_as_far_as_it_comes():
    wrong = chain(wrong=11)
    assert "add11" in found(wrong, emulation=chain(broken=24)).nodes
    assert found(chain(wrong=30), emulation=chain(broken=24)) is None


KEPT = names(*models.layer_norm().kept)
NOTHING = names()


def proposals(ready, left=6, ruled=NOTHING):
    attempts = ready.attempts
    made = Proposals(attempts, Budget(left), ruled)
    return made, attempts


def test_where_the_engine_departs_comes_first(stage):
    ready = stage(models.layer_norm(), lossy={"gamma": 1.5})
    made, attempts = proposals(ready)
    failed = attempts.attempt(KEPT, "mixed")
    assert not failed.passed
    (_, first), *rest = made.culprits(failed)
    assert "gamma" in first
    assert not first & KEPT
    assert made.budget.left == 6 - 1
    assert any("departs from the emulation" in note for note in ready.notes)
    assert len(rest) >= 2


@pytest.mark.parametrize(
    ("ignored", "first"), [([], "what guards are certain about"), (["square"], "wider islands")]
)
def test_where_constraints_are_ignored_wider_islands_come_before_the_guards(stage, ignored, first):
    ready = stage(models.layer_norm(), lossy={"gamma": 1.5}, ignored=ignored)
    made, attempts = proposals(ready, left=1)
    steps = [step for step, _ in made.culprits(attempts.attempt(names("square"), "mixed"))]
    assert steps[0].startswith(first)


def test_without_builds_left_the_guards_are_asked(stage):
    ready = stage(models.layer_norm(), lossy={"gamma": 1.5})
    made, attempts = proposals(ready, left=1)
    steps = dict(made.culprits(attempts.attempt(names("square"), "mixed")))
    assert steps["what guards are certain about"] == KEPT - {"square"}
    assert made.budget.left == 1


def test_an_engine_with_marks_that_crashes_tells_nothing(stage):
    ready = stage(models.layer_norm(), lossy={"gamma": 1.5}, faults=[Fault("build", "segv", (2,))])
    made, attempts = proposals(ready)
    (step, _), *_ = made.culprits(attempts.attempt(KEPT, "mixed"))
    assert "guards" in step


def test_regions_are_widened_and_nothing_lowered_is_kept(stage):
    region = ("square", "variance", "eps", "root", "divide")
    fault = Fault("build", "foreign", nodes=region)
    ready = stage(models.layer_norm(), faults=[fault])
    made, attempts = proposals(ready)
    sets = [p.keep for p in made.unbuildable(attempts.attempt(KEPT, "mixed"))]
    assert any(keep >= names(*region) for keep in sets)
    assert any(keep > KEPT for _, keep in made.wider(KEPT))


def test_what_a_rule_lowers_is_never_kept(stage):
    region = ("square", "variance", "eps", "root", "divide")
    fault = Fault("build", "foreign", nodes=region)
    ready = stage(models.layer_norm(), options={"lower": ["divide"]}, faults=[fault])
    made, attempts = proposals(ready)
    failed = attempts.attempt(KEPT, "mixed")
    sets = [p.keep for p in made.unbuildable(failed)] + [keep for _, keep in made.wider(KEPT)]
    assert sets
    assert not any("divide" in keep for keep in sets)


def test_what_a_rule_keeps_is_always_kept(stage):
    fault = Fault("build", "foreign", nodes=("square", "variance", "eps", "root", "divide"))
    ready = stage(models.layer_norm(), faults=[fault])
    made, attempts = proposals(ready, ruled=names("root"))
    sets = [p.keep for p in made.unbuildable(attempts.attempt(KEPT, "mixed"))]
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
    made, attempts = proposals(ready)
    (step, first), *_ = made.culprits(attempts.attempt(NOTHING, "plain"))
    assert "departs" in step
    assert "steep" in first
