from typing import Any

from halfwise.records import Rung, RungName
from halfwise.tools.diagnose.ladder import LADDER, climb
from halfwise.tools.diagnose.subject import skipped
from tests.unit.casing import names


def fixed(number, name, passed):
    return lambda _: Rung(rung=number, name=name, passed=passed, how="measured", cause="")


def test_the_first_that_fails_ends_it(subject):
    ladder: list[tuple[RungName, Any]] = [
        ("harness", fixed(1, "harness", True)),
        ("export", lambda _: skipped(2, "export", "nobody knows")),
        ("model", fixed(3, "model", False)),
        ("fp32", fixed(4, "fp32", True)),
    ]
    assert [rung.passed for rung in climb(subject(), ladder)] == [True, None, False]


def predicted(**changed):
    rung = Rung(
        rung=5,
        name="tf32",
        passed=False,
        how="emulated",
        cause="Off by 0.3.",
        nodes=tuple(names("a")),
    )
    return lambda _: rung.model_copy(update=changed)


def test_a_predicted_fault_of_tf32_does_not_end_it(subject):
    """Without an engine it is suspected only, where values are certain to overflow below."""
    after: Any = ("kernels", fixed(7, "kernels", True))
    broken = Rung(rung=6, name="precision", passed=False, how="emulated", cause="It overflows.")
    overflows = broken.model_copy(update={"overflows": True})
    first, second = climb(
        subject(), [("tf32", predicted()), ("precision", lambda _: overflows), after]
    )
    assert (first.passed, first.nodes) == (None, ())
    assert first.cause == "Suspected, in emulation: Off by 0.3."
    assert first.evidence[0].severity == "warning"
    assert second is overflows
    first, _ = climb(subject(), [("tf32", predicted()), ("precision", lambda _: broken), after])
    assert first.passed is False
    measured = climb(subject(), [("tf32", predicted(how="measured")), after])
    assert [rung.passed for rung in measured] == [False]


def test_a_healthy_model_passes_every_rung(subject):
    rungs = climb(subject())
    assert [rung.name for rung in rungs] == [name for name, _ in LADDER]
    assert [rung.rung for rung in rungs] == list(range(1, 8))
    assert [rung.passed for rung in rungs] == [True, None, None, True, True, True, None]
