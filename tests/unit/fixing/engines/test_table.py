from functools import partial

from halfwise.fixing.engines.candidates import Candidate
from halfwise.fixing.engines.measure import Measure
from halfwise.fixing.engines.table import FP32, MIXED, TF32, Table
from halfwise.tensorrt.worker.failures import EngineFailed
from tests import models
from tests.fake_tensorrt.faults import Fault
from tests.unit.casing import names
from tests.unit.reporting.runs import verdict

KEPT = names(*models.layer_norm().kept)
NOTHING = names()


def table(ready):
    fixed = ready.fixed
    return Table(
        measure=ready.run.measure,
        roles=fixed.planner.roles,
        low="FP16",
        samples=fixed.heldout,
        references=fixed.heldout_references,
        unseen=True,
        limit=1.0,
        notes=ready.notes,
    )


def rows(ready, *keeps):
    """Return rows by name, and what was noted."""
    attempts, builds = ready.attempts, ready.run.builds
    fp32 = builds.build(attempts.fp32, FP32)
    plain = attempts.attempt(NOTHING, "plain")
    low = [plain, *(attempts.attempt(keep, "mixed") for keep in keeps)]
    tf32 = builds.build(attempts.fp32, TF32, tf32=True)
    full = [attempts.measured(Candidate(NOTHING, b.purpose, b), b.purpose) for b in (fp32, tf32)]
    made = table(ready)
    offers = made.further((made.exact(full[0], verdict()), made.with_tf32(full[1])), low, low)
    return {o.row.name: o.row for o in made.raced(offers)}


def test_every_engine_is_judged_timed_and_inspected_alike(stage):
    ready = stage(models.layer_norm())
    found = rows(ready, KEPT)
    assert list(found) == [FP32, TF32, "FP16", MIXED]
    assert [row.verdict.passed for row in found.values()] == [True, True, False, True]
    assert {row.verdict.samples for row in found.values()} == {ready.fixed.heldout.ids}
    assert {tuple(row.latency.shapes.items()) for row in found.values()} == {(("x", (1, 4, 32)),)}
    assert all(row.proof for row in found.values())
    assert found[MIXED].kept == 4
    assert any("With 4 nodes constrained" in note for note in ready.notes)


def test_rows_with_as_many_kept_nodes_are_told_apart_and_timed_apart(stage):
    ready = stage(models.layer_norm(), pace={"fp32": 3.0, "low": 1.0, "border": 0.5})
    found = rows(ready, *(KEPT | names(n) for n in ("gamma", "divide", "mean")))
    assert len(found) == 6
    mixed = [row for row in found.values() if row.kept]
    times = {row.build.number: row.latency.median_ms for row in mixed}
    assert len(set(times.values())) > 1
    for row in mixed:
        own = ready.run.measure.latency(row.build.engine).median_ms
        assert row.latency.medians == (own,) * 5


def test_where_nothing_is_kept_there_is_no_further_row(stage):
    assert list(rows(stage(models.small()))) == [FP32, TF32, "FP16"]


def test_where_no_engine_runs_plain_low_precision_is_told(stage):
    ready = stage(models.layer_norm(), faults=[Fault("run", "abort", when={"low": "fp16"})])
    found = rows(ready)
    assert list(found) == [FP32, TF32, "FP16"]
    assert "SIGABRT" in found["FP16"].failure
    assert found["FP16"].verdict is None


def test_a_connection_lost_once_leaves_every_row(stage, monkeypatch):
    lost = [True]

    def at_shapes(*given):
        if lost:
            lost.clear()
            raise EngineFailed("The connection is lost.", status="lost")
        return Measure.at_shapes(*given)

    ready = stage(models.layer_norm())
    monkeypatch.setattr(ready.run.measure, "at_shapes", partial(at_shapes, ready.run.measure))
    found = rows(ready, KEPT)
    assert not lost
    assert [row.failure for row in found.values()] == [""] * 4
    assert found[MIXED].verdict.passed


def crashing(*_, **__):
    raise EngineFailed("It ended with SIGSEGV.", status="crashed", signal="SIGSEGV")


def test_engines_that_cannot_be_inspected_are_judged_and_timed(stage, monkeypatch):
    ready = stage(models.layer_norm())
    monkeypatch.setattr(ready.run.measure, "proof", crashing)
    found = rows(ready, KEPT)
    assert all(row.verdict and row.latency and not row.proof for row in found.values())
    assert not any(row.failure or row.untimed for row in found.values())
    assert sum("computes in is not known: It ended with" in note for note in ready.notes) == 4


def test_what_crashes_where_it_is_judged_was_timed(stage, monkeypatch):
    ready = stage(models.layer_norm())
    monkeypatch.setattr(ready.run.measure, "judge", crashing)
    row = rows(ready)[FP32]
    assert (row.failure, row.untimed) == ("It ended with SIGSEGV.", "")


def test_fp32_that_cannot_be_timed_is_judged_and_inspected(stage, monkeypatch):
    ready = stage(models.layer_norm())
    monkeypatch.setattr(ready.run.measure, "latency", crashing)
    row = rows(ready)[FP32]
    assert row.failure == "It ended with SIGSEGV."  # as any other, without leave
    fp32 = Candidate(NOTHING, FP32, row.build)
    measured = ready.attempts.measured(fp32, FP32, untimed=True)
    row = table(ready).exact(measured, verdict()).row
    assert (row.untimed, row.failure) == ("It ended with SIGSEGV.", "")
    assert row.verdict.passed
    assert row.proof


def test_an_engine_that_is_fp32_in_truth_is_told(stage):
    # Every free node FP32, whatever was allowed; and FP32 engines that are not exact.
    ready = stage(models.layer_norm(), vary=(1.0, 1), broken={"gamma": 1.000003})
    found = rows(ready, KEPT)
    assert any("mixed: The engine is as exact as the FP32 engine" in n for n in ready.notes)
    assert any("nothing in FP16" in line for line in found[MIXED].proof.findings)


def test_in_strong_typing_every_node_was_asked_for(stage):
    found = rows(stage(models.layer_norm(), version="10.0.1"), KEPT)
    asked = {node.asked for node in found[MIXED].proof.nodes}
    assert {"fp32", "fp16"} <= asked
    assert found[MIXED].proof.findings == ()
