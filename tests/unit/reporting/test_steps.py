from typing import get_args

import pytest

from halfwise.records import Step, StepKind
from halfwise.reporting.remarks import step_text, steps_told

NAMES = {
    "since": "9",
    "older": "8.x",
    "flags": "--fp16",
    "metric": "top1",
    "rung": "FP16",
    "more": "work",
    "allowed": "rel max ≤ 0.01",
    "options": "--keep a",
    "reasons": "R",
    "operators": "Op",
}
NUMBERS = {
    "size": 2,
    "kept": 2,
    "cost": 1.2,
    "error": 3.0,
    "required": 1.5,
    "lowered": 1,
    "cheaper": 1,
    "int8": 0,
    "engines": 1,
    "needed": 59,
    "further": 0,
}


@pytest.mark.parametrize("kind", get_args(StepKind))
def test_each_kind_has_words_and_its_command_apart(kind: StepKind) -> None:
    command = ("halfwise", "report", "my run")
    step = Step(kind=kind, names=NAMES, numbers=NUMBERS, items=("kept",), text="x", command=command)
    words, shown = step_text(step)
    assert words
    assert "{" not in words
    assert shown == "halfwise report 'my run'"
    assert steps_told((step,)) == (f"{words}: {shown}",)
