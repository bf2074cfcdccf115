from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.declarations import Options, check, default, spelt
from halfwise.declarations import given as given_options
from halfwise.declarations.option import Domain, Option, check_value, option, shell_type
from halfwise.errors import UsageError

FRACTION = Annotated[float | None, Option("Part of it.", "X", 0.5, Domain("a fraction", 0, 1))]


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        (Option("What it is."), "What it is."),
        (Option("What it is.", default="fp16"), "What it is. Default fp16."),
        (Option("What it is.", default=2.0), "What it is. Default 2."),
        (Option("Of {}, or so.", default=0.01), "Of 0.01, or so."),
        (Option("What it is.", default=0), "What it is. Default 0."),
    ],
)
def test_the_help_tells_the_default(declared, text):
    assert declared.help == text


@pytest.mark.parametrize(
    ("hint", "kind"),
    [
        (FRACTION, float),
        (Annotated[str | Path | None, Option("")], str),
        (Annotated[Path | str | None, Option("A path.")], Path),
        (Annotated[Sequence[str], Option("")], Sequence[str]),
        (Annotated[Literal["a", "b"] | None, Option("")], Literal["a", "b"]),
    ],
)
def test_a_shell_gives_the_first_of_a_union(hint, kind):
    assert shell_type(hint) == kind


@given(value=st.floats())
def test_numbers_outside_of_the_domain_are_refused(value):
    if 0 <= value <= 1:
        check_value("a_b", FRACTION, value)
    else:
        with pytest.raises(UsageError, match=r"--a-b is .*; expected a fraction"):
            check_value("a_b", FRACTION, value)


def test_words_are_those_listed():
    hint = Annotated[Literal["a", "b"] | None, Option("")]
    check_value("c", hint, "b")
    check_value("c", hint, None)
    with pytest.raises(UsageError, match="--c is 'd'; expected a or b"):
        check_value("c", hint, "d")


def test_every_default_is_in_its_domain():
    check({name: default(name) for name in Options.__annotations__})
    assert default("headroom") == 2
    assert default("keep") is None


def test_infinity_is_in_no_domain():
    for name, hint in Options.__annotations__.items():
        if option(hint).domain:
            with pytest.raises(UsageError, match=f"^{spelt(name)} is inf; expected an? "):
                check({name: inf})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"rel_max": inf}, "--rel-max is inf; expected a finite number ≥ 0."),
        ({"time_budget": -5.0}, "--budget time is -5; expected a finite number of seconds ≥ 0."),
        ({"margin": 2.0}, "--require margin is 2; expected a number above 0, at most 1."),
        ({"builds": 10**400}, f"--engine repeat is {10**400}; expected a number from 1 to 1000."),
    ],
)
def test_a_refused_number_is_told_as_it_was_typed(options, told):
    with pytest.raises(UsageError) as refused:
        check(options)
    assert refused.value.message == told


def test_messages_call_options_as_the_command_line_does():
    assert [spelt(name) for name in ("min_shapes", "rel_max", "tf32")] == [
        *("--engine minShapes", "--rel-max", "--engine tf32"),
    ]
    assert spelt("cosine", "0.9") == "--require cosine=0.9"
    assert spelt("rel_max", "0.1") == "--rel-max 0.1"


def test_docstrings_tell_every_option():
    for name, hint in Options.__annotations__.items():
        assert f"\n        {name}: {option(hint).help}" in f"{Options.__doc__}"
    assert "Default 2. Takes a finite number ≥ 1." in f"{Options.__doc__}"


def test_zero_is_given_and_a_flag_that_is_off_is_not():
    found = given_options(time_budget=0, margin=0.0, tf32=False, to=None, keep=[], lower=())
    assert found == {"time_budget": 0, "margin": 0.0}
