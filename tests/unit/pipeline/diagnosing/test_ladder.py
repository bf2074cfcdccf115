from typing import Any

from halfwise.pipeline.diagnosing.ladder import LADDER, climb
from halfwise.pipeline.diagnosing.subject import skipped
from halfwise.records import Rung, RungName


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


def test_a_healthy_model_passes_every_rung(subject):
    rungs = climb(subject())
    assert [rung.name for rung in rungs] == [name for name, _ in LADDER]
    assert [rung.rung for rung in rungs] == list(range(1, 8))
    assert [rung.passed for rung in rungs] == [True, None, None, True, True, True, None]
