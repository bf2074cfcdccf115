from typing import get_args

import pytest

from halfwise.records import Step, StepKind
from halfwise.reporting.steps import step_text, steps_told

NAMES = {
    "since": "9",
    "older": "8.x",
    "flags": "--fp16",
    "metric": "top1",
    "rung": "FP16",
    "more": "work",
    "allowed": "rel max ≤ 0.01",
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


def test_what_eight_is_built_from() -> None:
    step = Step(kind="older-constrained", names={"older": "8.x"}, items=("repaired", "int8"))
    assert step_text(step)[0].endswith(
        "`halfwise export` writes the repaired FP32 model and its Q/DQ pairs."
    )


def test_engines_of_several_devices() -> None:
    step = Step(kind="engines", names={"orin": "run/a b.engine", "cloud": "-c.engine"})
    assert step_text(step)[0].startswith(
        "The engines are 'run/a b.engine' (orin), ./-c.engine (cloud);"
    )


def test_nodes_that_never_ran_can_be_kept() -> None:
    assert (
        "or keep the node whose body never ran (--keep 'a b')"
        in step_text(Step(kind="untested", items=("a b",)))[0]
    )
