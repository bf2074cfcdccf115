"""What failures are told as."""

import math
from typing import get_args

from halfwise.records import Failure, FailureKind
from halfwise.reporting.remarks import _WORDS, reasons, under, with_failures
from halfwise.store import read_run, write_run
from tests.unit.reporting.runs import run, verdict

BRING_WORDS = {"not-real", "unjudged", "cause", "rung", "worse"}


def told(failure: Failure) -> str:
    (reason,) = reasons([failure])
    return reason


def test_every_kind_has_words_or_brings_them() -> None:
    assert set(get_args(FailureKind)) == _WORDS.keys() | BRING_WORDS
    assert told(Failure(kind="cause", text="a kernel {is} [to] blame")).startswith("a kernel {is}")


def test_a_failure_of_something_else_says_of_what() -> None:
    wrong = Failure(kind="non-finite", names={"output": "y"}, numbers={"elements": 1})
    nested = under("shapes", "min", under("batch", 4, [wrong]))
    assert told(nested[0]) == (
        "at min shapes: in batches of 4, output y has 1 non-finite value that the reference lacks"
    )
    unlike = wrong.model_copy(update={"numbers": {"unlike": 2}})
    assert told(unlike).startswith("output y has 2 elements where it or the reference is not")
    (seen,) = under("seen", "", [wrong])
    assert told(seen).startswith("on samples that the search used, output y has 1 ")


def test_what_fails_too_comes_last_unless_it_is_graver() -> None:
    old = verdict(passed=False, reasons=("it fails",))
    wrong = Failure(kind="fp32-wrong")
    assert reasons(with_failures(old, [wrong]).failures) == ("it fails", told(wrong))
    assert reasons(with_failures(old, [wrong], ahead=True).failures) == (told(wrong), "it fails")
    passed = with_failures(verdict(passed=True), [])
    assert not passed.passed


def test_numbers_of_slices_are_told_by_their_scale_or_their_span() -> None:
    names = {"output": "y", "sample": "s1", "slices": "slice 3 of axis 1", "of": "s2"}
    numbers = {"max_abs": 2.0, "rel_max": math.inf, "snr": 3.21, "off": 2.0, "allowed": 0.5}
    scaled = Failure(kind="tolerance", names=names, numbers={**numbers, "scale": 50.0})
    assert told(scaled) == (
        "output y is out of tolerance: slice 3 of axis 1, with values up to 50, off by 2 (sample "
        "s2) where 0.5 is allowed; overall max error 2, inf of the largest reference value, SNR "
        "3.2 dB (worst sample s1)"
    )
    spanned = scaled.model_copy(update={"numbers": {**scaled.numbers, "span": 7.0}})
    assert "slice 3 of axis 1, with values spanning 7 on an offset, off by 2" in told(spanned)


def test_what_it_is_worth_may_be_unknown() -> None:
    known = Failure(kind="worth", numbers={"allowed": 2.0, "cost": 3.0})
    assert told(known) == "it costs 3 × everything low, and at most 2 × is required"
    unknown = Failure(kind="worth", numbers={"allowed": 2.0})
    assert told(unknown) == "its cost is unknown, and --require worth needs it"


def test_failures_survive_the_file(tmp_path) -> None:
    wrong = Failure(kind="tolerance", names={"output": "inf"}, numbers={"rel_max": math.inf})
    found = verdict(passed=False, failures=(wrong,), reasons=("as told then",))
    write_run(tmp_path, run(verdict=found))
    assert read_run(tmp_path).verdict == found
