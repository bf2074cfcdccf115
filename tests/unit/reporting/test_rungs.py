from typing import Any

import pytest

from halfwise.records import Cause, Move, NodeName, ProvenEngine, Refusal, RungTried, Spared
from halfwise.reporting.rungs import (
    cause_line,
    first_line,
    move_line,
    proven_line,
    refusal_lines,
    rung_caution,
    rung_line,
    shows_line,
    spared_line,
)
from tests.unit.reporting.engine_runs import engines, failed


def tried(**changed):
    values: dict[str, Any] = {
        "rung": "fp16",
        "end": "tolerance",
        "plans": 5,
        "builds": 5,
        "built": 2,
        "ran": 2,
    }
    return RungTried(**values | changed)


def test_a_rung_is_told_with_what_was_tried():
    assert rung_line(tried(excess=1.43, kept=3)) == (
        "FP16: out of tolerance (5 plans, 2 of 5 builds gave an engine; the nearest engine has "
        "1.43 times what the search allows with 3 nodes kept)."
    )
    assert rung_line(tried(rung="tf32", end="delivered", excess=0.75)) == (
        "TF32: delivered (its error is 0.75 times what the search allows)."
    )


def test_an_engine_that_computes_nothing_low_is_called_so():
    def told(end, rung="tf32"):
        return rung_caution(engines().model_copy(update={"rung": rung, "rungs": (tried(end=end),)}))

    assert told("unbuildable") == "The delivered engine is FP32 with TF32: no FP16 plan passed."
    assert told("slower", "fp32") == (
        "The delivered engine is FP32 without TF32: it is faster than the FP16 engines that passed."
    )
    assert "no FP16 engine that passed is shown to be faster" in told("not-preferred")
    assert told("no-part", "tf32") == (
        "The delivered engine is FP32 with TF32: nothing in FP16 contributes to the outputs of any "
        "engine that passed."
    )
    cause = Cause(kind="refused", builds=(3,), nodes=(NodeName("mean"), NodeName("div")))
    refused = {"rung": "fp32", "rungs": (tried(end="refused"),), "causes": (cause,)}
    assert rung_caution(engines().model_copy(update=refused)) == (
        "The delivered engine is FP32 without TF32: the builder refused every FP16 plan that the "
        "emulation predicts to pass, at 2 nodes from mean to div."
    )
    assert told("delivered", "fp16") == rung_caution(engines()) == ""


def test_an_engine_with_nothing_low_in_its_outputs_is_told_so():
    found = engines()
    row = found.row
    assert row is not None
    low = next(r for r in found.results if r.build.config.low is not None)
    assert shows_line(low) == ""
    low = low.model_copy(update={"shows": "tf32"})
    said = (
        "the outputs equal those of the TF32 engine to the last digit: what is in FP16 "
        "does not contribute to the outputs."
    )
    assert shows_line(low) == said
    assert "it is as exact as the FP32 engine (SNR" in shows_line(
        low.model_copy(update={"shows": "fp32"})
    )
    results = tuple(low if r is row else r for r in found.results)
    rungs = (tried(end="no-part"),)
    found = found.model_copy(update={"results": results, "rung": "fp16", "rungs": rungs})
    assert rung_caution(found) == f"The delivered engine: {said}"
    assert rung_line(rungs[0]).startswith("FP16: passed, but nothing of it contributes to")


def test_causes_are_told_with_their_builds():
    def line(kind, **more):
        return cause_line(Cause(kind=kind, builds=(2, 3), **more))

    assert line("no-engine") == "no low engine could be built, in builds 2, 3"
    assert line("not-run").endswith("runs, of builds 2, 3")
    assert line("lost").startswith("nothing is known of low engines")
    assert "shows square in the low format" in line("ignored", nodes=(NodeName("square"),))
    kernel = line("kernel", nodes=(NodeName("conv"),), excess=9.0, other=0.5)
    assert kernel.startswith("a kernel or the compiler is to blame in conv: ")
    assert "the emulation predicts 0.5; the engine that has these nodes in" in kernel
    assert "where the emulation predicts 0.3" in line("precision", excess=0.4, other=0.3)
    assert line("precision").endswith("too large an error (builds 2, 3)")
    assert "1.4 times what is allowed, 0.5 by the" in line("unknown", excess=1.4, other=0.5)
    assert line("unknown").endswith("is shown to be at fault (builds 2, 3)")


def test_what_is_not_known_of_the_delivered_engine_is_told():
    def told(end, **changed):
        found = engines()
        assert found.row is not None
        row = found.row.model_copy(update=changed)
        rows = tuple(row if r == found.row else r for r in found.results)
        update = {"rung": "fp32", "rungs": (tried(end=end),), "results": rows}
        return rung_caution(found.model_copy(update=update))

    gone = told("lost", untimed="The connection is lost.", lost=True)
    assert "the worker was lost before any FP16 engine was judged" in gone
    assert gone.endswith("the worker was lost before the rest was measured.")
    assert told("unfetched").endswith("the FP16 engine that passed could not be fetched.")
    assert told("tolerance", untimed="It crashed.").endswith("It could not be timed: It crashed.")


def test_what_is_proven_while_the_run_goes_on():
    found = ProvenEngine(build=2, seconds=15.2, median_ms=0.216)
    assert proven_line(found, "tf32") == (
        "build 2 is proven on held-out data, FP32 with TF32, 0.216 ms a run"
    )
    untimed = ProvenEngine(build=1, seconds=30.0)
    assert proven_line(untimed, "fp32").endswith("held-out data, FP32 without TF32")
    told = engines().model_copy(update={"proven": (found, untimed)})
    assert first_line(told).startswith("first proven engine: build 2 (")
    assert first_line(told).endswith("), after 15.2 s")
    assert first_line(engines()) == ""


def test_what_was_not_built_is_told_with_its_reason():
    slower = Spared(kind="slower", build=4, median_ms=0.614, full=2, full_ms=0.57)
    assert spared_line(slower) == (
        "no more plans were built: with nothing kept a run takes 0.614 ms (build 4), and 0.57 ms "
        "in an FP32 engine that passes (build 2)"
    )
    beside = spared_line(slower.model_copy(update={"beside": 5}))
    assert beside.startswith("no more plans were built but one without repairs (build 5): with no")
    assert "was interrupted" in spared_line(Spared(kind="interrupted"))
    assert spared_line(Spared(kind="no-tf32")).endswith("this GPU has none")
    full = engines().model_copy(update={"rung": "tf32", "rungs": (tried(rung="tf32"),)})
    assert "the run was interrupted before anything lower was built" in rung_caution(full)


A, B = NodeName("a"), NodeName("b")


@pytest.mark.parametrize(
    ("move", "line"),
    [
        (Move(kind="level", refused=2, level=5), "instead of build 2: optimization level 5"),
        (
            Move(kind="region", refused=3, ends=("a", "b")),
            "instead of build 3: all of the region kept",
        ),
        (Move(kind="none", refused=2), "instead of build 2: nothing kept there"),
    ],
)
def test_moves(move, line):
    assert move_line(move) == line


@pytest.mark.parametrize(
    ("refusal", "line"),
    [
        (
            Refusal(kind="no-kernel", build=2, ends=("a", "b"), nodes=(A, B)),
            "Build 2: the builder has no kernel for 2 nodes from a to b.",
        ),
        (
            Refusal(kind="crash", build=4, ends=("a", "b"), nodes=(A,)),
            "Build 4: the builder crashed in 1 node from a to b.",
        ),
        (Refusal(kind="unknown", build=5), "Build 5: the builder gave up."),
        (Refusal(kind="timeout", build=5), "Build 5: the builder took too long for the model."),
    ],
)  # fmt: skip
def test_refusals(refusal, line):
    assert list(refusal_lines([refusal], [])) == [line]


def test_builds_that_were_refused_alike_are_told_once():
    def refused(build, kind="no-kernel", **more):
        return Refusal(kind=kind, build=build, ends=("a", "b"), nodes=(A, B), **more)

    said = "No implementation for node {ForeignNode[a...b]}."
    alike = [refused(n, said=said) for n in (3, 5, 6)]
    lines = refusal_lines([*alike, refused(7, "crash"), refused(8, "crash")], [failed(7)])
    where = "2 nodes from a to b"
    assert list(lines) == [
        f"Builds 3, 5, 6: the builder has no kernel for {where}. It said: {said}",
        f"Build 7: the builder crashed in {where}, by SIGSEGV.",
        f"Build 8: the builder crashed in {where}.",
    ]
