"""Plans that the builder refuses, and the one move that leads to an engine, on the stand-in."""

import numpy as np
import pytest

from halfwise.errors import BuildFailed
from halfwise.fixing.engines.attempts import Chosen
from halfwise.fixing.engines.run import EngineRun
from halfwise.progress import Silent
from halfwise.records import Move, Refusal
from tests import models
from tests.fake_tensorrt.faults import Fault
from tests.fake_tensorrt.regions import Region
from tests.models import Ill
from tests.unit.casing import names
from tests.unit.graph.sketch import Sketch, f32

REGION = ("pre", "square", "shrink", "mid", "turn", "root", "post")
KEPT = ("square", "shrink", "mid", "root")


def region() -> Ill:
    """A square that overflows; what moves data and a product are inside of what is kept."""
    s = Sketch()
    x = s.op("Mul", s.input("x", [1, 32]), 1.5, name="pre")
    shrunk = s.op("Mul", s.op("Pow", x, f32(2.0), name="square"), 1e-4, name="shrink")
    mid = s.op("MatMul", shrunk, f32(np.eye(32)), name="mid")
    root = s.op("Sqrt", s.op("Transpose", mid, name="turn"), name="root")
    last = s.op("Mul", root, 0.5, name="post")
    for i in range(6):
        last = s.op("Add", last, 0.25, name=f"tail{i}")
    side = s.op("Tanh", s.op("Transpose", shrunk, name="side_turn"), name="side")
    proto = s.proto(s.op("Add", last, side, name="joined"))
    return Ill(proto, {"x": models.signals(1, 32, seed=5, peak=3e3)})


def refuses(*among: str, fails: str = "any", **when: object) -> Fault:
    return Fault("build", "foreign", nodes=REGION, among=among, fails=fails, when=when)


def chosen(run: EngineRun, fixed, start) -> tuple[Chosen, list[str], tuple[Refusal, ...]]:
    """Return what is chosen, the moves until it was found, and what was refused."""
    run.reference()
    search, _, _ = run.search(fixed, fixed.heldout.for_watcher(Silent()))
    found = search.run(names(*start))
    steps = [c.step for g in search.groups for c in g[:1] if isinstance(c.step, Move)]
    return found, [step.kind for step in steps], search.proposals.refusals.records()


FEWER = ["computing", "border"]
RESCUES = [
    ("computing", [refuses("turn")], ["computing"]),
    ("border", [refuses("mid")], FEWER),
    ("tf32", [refuses("square", tf32=False)], [*FEWER, "region", "level", "tf32"]),
]


@pytest.mark.parametrize(("kind", "faults", "moves"), RESCUES, ids=[r[0] for r in RESCUES])
def test_the_move_that_helps_is_found(stage, kind, faults, moves):
    ready = stage(region(), faults=faults, options={"keep": list(KEPT)}, engine={"max_builds": 12})
    found, tried, refused = chosen(ready.run, ready.fixed, KEPT)
    assert found.best is not None
    assert found.best.passed
    assert isinstance(found.best.step, Move)
    assert (found.best.step.kind, found.best.step.refused) == (kind, 2)
    assert tried == moves
    config = found.best.build.config
    assert config.tf32 == (kind == "tf32")
    assert ("turn" in config.keep) == (kind not in FEWER)
    assert refused[0].build == 2
    assert {(r.kind, r.ends) for r in refused} == {("no-kernel", ("pre", "post"))}


def test_an_island_helps_where_nothing_smaller_does(stage):
    faults = [refuses("square", "mid", fails="some"), refuses("square", kept=["post"])]
    keep = ("square", "shrink", "root")
    ready = stage(region(), faults=faults, options={"keep": keep}, engine={"max_builds": 12})
    found, tried, _ = chosen(ready.run, ready.fixed, keep)
    assert found.best is not None
    assert found.best.passed
    assert tried[-1] == "island"
    assert found.best.keep == names(*keep, "mid")


def test_what_is_kept_in_the_region_is_given_up_in_the_end(stage):
    ill = region()
    ill = Ill(ill.proto, {"x": ill.inputs["x"] / 30})
    lossy = {"tail3": 1.5}
    ready = stage(ill, faults=[refuses(*REGION)], lossy=lossy, engine={"max_builds": 20})
    found, tried, _ = chosen(ready.run, ready.fixed, ("mid", "tail3"))
    assert found.best is not None
    assert found.best.passed
    assert tried[-1] == "none"
    assert found.best.keep == names("tail3")


def test_where_the_fp32_model_is_refused_another_level_is_that_of_the_run(stage):
    fault = Fault("build", "foreign", region=Region(ops=("Sqrt",), level=2))
    ready = stage(region(), faults=[fault])
    ready.run.reference()
    proven = ready.run.prove(ready.fixed)
    assert proven.verdict.passed
    builds = proven.engines.builds
    assert [b.config.optimization_level for b in builds[:3]] == [None, 5, 1]
    assert [b.status for b in builds[:3]] == ["failed", "failed", "built"]
    assert {b.config.optimization_level for b in builds[3:]} == {1}
    assert [r.build for r in proven.engines.refusals] == [1, 2]


@pytest.mark.parametrize(
    ("do", "kind"), [("segv", "crash"), pytest.param("hang", "timeout", marks=pytest.mark.slow)]
)
def test_where_the_builder_died_is_the_region_as_an_engine_shows_it(stage, do, kind):
    fault = Fault("build", do, when={"low": "fp16", "kept": ["mid"]})
    how = {"max_builds": 20, "build_timeout": 3.0}
    ready = stage(region(), faults=[fault], lossy={"tail3": 1.5}, fused=[list(REGION)], engine=how)
    found, _, refused = chosen(ready.run, ready.fixed, ("mid", "tail3"))
    assert found.best is not None
    assert found.best.keep == names("tail3")
    first = refused[0]
    assert (first.kind, first.ends, first.nodes) == (kind, ("pre", "post"), REGION)
    # One of the moves leaves the region as it is, so it is not built.
    assert (first.shown, first.avoided) == (True, 1)


@pytest.mark.parametrize(
    ("do", "engine", "builds"), [("memory", {}, 1), ("segv", {"optimization_level": 3}, 1)]
)
def test_another_level_is_no_answer_to_everything(stage, do, engine, builds):
    ready = stage(region(), faults=[Fault("build", do)], engine=engine)
    with pytest.raises(BuildFailed):
        ready.run.reference()
    assert len(ready.run.builds.outcomes) == builds
