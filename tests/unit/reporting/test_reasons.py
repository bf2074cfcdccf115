"""What failures are told as."""

import math

from halfwise.records import Failure
from halfwise.reporting.remarks import reasons, under, with_failures
from halfwise.store import read_run, write_run
from tests.unit.reporting.runs import run, verdict


def told(failure: Failure) -> str:
    (reason,) = reasons([failure])
    return reason


def test_a_failure_of_something_else_says_of_what() -> None:
    wrong = Failure(kind="non-finite", names={"output": "y"}, numbers={"elements": 1})
    nested = under("shapes", "min", under("batch", 4, [wrong]))
    assert told(nested[0]).endswith(told(wrong))
    assert nested[0].under == {"shapes": "min", "batch": 4}


def test_what_fails_too_comes_last_unless_it_is_graver() -> None:
    old = verdict(passed=False, reasons=("it fails",))
    wrong = Failure(kind="fp32-wrong")
    assert reasons(with_failures(old, [wrong]).failures) == ("it fails", told(wrong))
    assert reasons(with_failures(old, [wrong], ahead=True).failures) == (told(wrong), "it fails")
    passed = with_failures(verdict(passed=True), [])
    assert not passed.passed


def test_failures_survive_the_file(tmp_path) -> None:
    wrong = Failure(kind="tolerance", names={"output": "inf"}, numbers={"rel_max": math.inf})
    found = verdict(passed=False, failures=(wrong,), reasons=("as told then",))
    write_run(tmp_path, run(verdict=found))
    assert read_run(tmp_path).verdict == found
