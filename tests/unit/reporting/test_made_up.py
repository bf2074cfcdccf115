"""Words on inputs that look made up."""

from halfwise.case import MadeUp
from halfwise.reporting.made_up import look, not_real

NOISE = MadeUp(input="x", kind="uniform", mean=0.5, deviation=0.29)
ZEROS = MadeUp(input="h", kind="constant", mean=0, deviation=0)


def test_what_an_input_looks_like():
    assert look(NOISE).startswith("input 'x' looks like uniform noise (mean 0.50, ")
    assert look(ZEROS) == "input 'h' looks made up: all its elements are equal"


def test_why_inputs_say_nothing_and_what_accepts_them():
    assert "the inputs are random" in not_real(())
    told = not_real((NOISE, ZEROS))
    assert "'x'" in told
    assert "'h'" in told
    assert "not on real data" in told
    assert "--allow-random" in told
