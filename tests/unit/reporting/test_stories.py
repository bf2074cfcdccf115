"""Ten stories of engines: the reason is in the first two lines of the first screen."""

from typing import Any

import msgspec
import pytest

from halfwise.records import Cause, Failure, NodeName, RungTried, replace
from halfwise.reporting.view import screen
from tests.unit.reporting.engine_runs import engines, failed, result
from tests.unit.reporting.runs import baseline, kept, plan, run, search, verdict

NODES = (NodeName("/a/Pow"), NodeName("/b/Pow"))
PASSED = verdict(level="engine")


def lines(**changed: Any) -> str:
    shown = screen(run(verdict=PASSED, **changed))
    return f"{shown.title}\n{shown.reason}"


def full(end: str, *causes: Cause, rung: str = "fp16", **changed: Any) -> str:
    """Return the first two lines of a run that delivers FP32, as the low rung ended so."""
    tried = msgspec.convert({"rung": rung, "end": end}, RungTried)
    return lines(engines=engines(rung="fp32", rungs=(tried,), causes=causes, keep=(), **changed))


def cause(kind: str, nodes: tuple[NodeName, ...] = ()) -> Cause:
    return msgspec.convert({"kind": kind, "builds": (2,), "nodes": nodes}, Cause)


STORIES = {
    "crashed": (
        lambda: full("unbuildable", builds=tuple(map(failed, range(6)))),
        ("crashed in 6 of 6", "SIGSEGV"),
    ),
    "ignored": (lambda: full("tolerance", cause("ignored", NODES)), ("ignored 2 ", "Pow")),
    "unsteady": (lambda: full("unsteady"), ("in most of its builds",)),
    "refused": (lambda: full("tolerance", cause("refused")), ("refused",)),
    "held out": (lambda: full("held-out"), ("held-out",)),
    "lost": (lambda: full("lost"), ("worker was lost",)),
    "not run": (lambda: full("not-run"), ("runs to the end",)),
    "interrupted builds": (lambda: full("delivered", rung="tf32"), ("interrupted",)),
    "slower": (lambda: full("slower"), ("faster",)),
    "wrong": (
        lambda: _failed("output y is off by 0.19 of its maximum on frame 7"),
        ("FAILED", "frame 7"),
    ),
}


def _failed(text: str) -> str:
    failure = Failure(kind="cause", text=text)
    wrong = verdict(passed=False, level="engine", failures=(failure,))
    shown = screen(run(verdict=wrong, engines=engines()))
    return f"{shown.title}\n{shown.reason}"


@pytest.mark.parametrize("story", STORIES)
def test_the_reason_is_in_the_first_two_lines(story: str) -> None:
    told, facts = STORIES[story]
    text = told()
    assert all(fact in text for fact in facts), text
    assert "emulation" not in text.replace("in the emulation", "emulation") or story == "refused"


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("lost", "the worker orin was lost"),
        ("unbuildable", "crashed in 2 of 2 FP16 builds (SIGSEGV) on orin"),
        ("not-run", "runs to the end on orin"),
    ],
)
def test_of_two_devices_the_one_at_fault_is_named(end: str, words: str) -> None:
    ended = msgspec.convert({"rung": "fp16", "end": end}, RungTried)
    one = engines(rung="fp32", rungs=(ended,), keep=(), results=())
    row = result("mixed", 3, 1.0, failure="It crashed.", rung="fp16")
    named = replace(one.worker, name="orin")
    builds = tuple(map(failed, range(2)))
    other = replace(one, worker=named, results=(row,), builds=builds)
    assert words in lines(engines=one, further=(other,))


def test_no_part_speaks_of_the_emulation_where_engines_decided() -> None:
    shown = screen(run(verdict=PASSED, engines=engines()))
    assert not any(part.title.startswith("With everything") for part in shown.parts)


def test_rules_that_buy_nothing_are_said_to() -> None:
    ruled = tuple(kept(f"/n{i}", kept_by="rule", guard=None) for i in range(38))
    shown = screen(run(plan=plan(ruled), baseline=verdict(), guards=()))
    assert "38 nodes" in shown.reason
    assert "buy nothing" in shown.reason
    needed = screen(run(plan=plan(ruled), baseline=baseline(), guards=()))
    assert "buy nothing" not in needed.reason


def test_an_interrupted_search_is_said_to() -> None:
    ended = search(ended_by=("interrupt",))
    assert "interruption" in screen(run(search=ended)).title
