import re

import pytest

from halfwise.records import Growth, NodeName
from halfwise.reporting import causes as nodes
from halfwise.reporting.remarks import CAUSES
from halfwise.reporting.view import screen
from tests.unit.reporting.facts_planned import KEPT, followed_by
from tests.unit.reporting.runs import FIX, guard, kept, plan, run


def trouble(run, **how):
    told = nodes.trouble(run, **how)
    assert told is not None
    return told.lines


def test_each_fix_is_told_once():
    lines = trouble(run())
    assert [line for line in lines if FIX in line] == [f"Usual fix: {FIX}"]
    assert len(trouble(run(), brief=True)) == 1


@pytest.mark.parametrize(("severity", "doubt"), [(0.7, "perhaps "), (1.5, "")])
def test_a_cause_that_is_only_possible_is_suspected(severity, doubt):
    found = guard("/a", "decision", severity=severity)
    made = run(plan=plan((kept("/a", guard="decision"),)), guards=(found,))
    assert screen(made).reason.startswith(f"1 node kept: {doubt}{CAUSES['decision']}")


@pytest.mark.parametrize(("node", "found"), KEPT)
def test_every_kept_node_has_a_reason_on_the_first_screen(node, found):
    followed = None if found is None else followed_by(**found)
    node = {"guard": None, "error_without": None, **node}
    three = (kept("/a", **node), kept("/b"), kept("/b", guard="mask"))
    line = screen(run(plan=plan(three), followed=followed)).reason
    assert line.startswith("3 nodes kept: ")
    assert sum(map(int, re.findall(r"\((\d+)\)", line))) == 3


def test_any_name_is_left_as_it_is():
    growth = (Growth(node=NodeName("choose[0|1]{x}"), error=0.1, inherited=0.0),)
    found = followed_by(accumulates=True)
    (line,) = nodes.followed_lines(run(followed=found, growth=growth))
    assert "choose[0|1]{x}" in line
