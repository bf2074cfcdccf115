"""What to do next."""

from typing import Literal

from halfwise.records.record import Facts

StepKind = Literal[
    "said",
    "build",
    "older-bf16",
    "older-bodies",
    "older-plain",
    "older-constrained",
    "prove",
    "engines",
    "verify-elsewhere",
    "export",
    "choose",
    "use-fp32",
    "near-plan",
    "no-near-plan",
    "use-metric",
    "lint",
    "fix",
    "fix-quantised",
    "compare",
    "diagnose",
    "modernize",
    "other-builds",
    "typing-strong",
    "lost",
    "unfetched",
    "accumulate-fp16",
    "no-tf32",
    "more-builds",
    "search-on",
    "keep-less",
    "leave-lower",
    "more-samples",
    "real-inputs",
    "untested",
    "own-runs",
    "check-tolerance",
    "batches",
    "best-model",
    "accept-missing",
]
"""What a step does; the words are in `reporting.steps`."""


class Step(Facts):
    """Something to do next.

    Attributes:
        kind: What it does.
        names: Files, formats and options that it concerns; their keys depend on `kind`, for
            "engines" they are the devices of the files.
        numbers: Its numbers; their keys depend on `kind`.
        items: What it lists: metrics, nodes, devices, groups of figures, or what a model has
            that is built.
        command: The words of the command that does it, not quoted; None if no single one does.
        text: The sentence itself for "said", which other records hold the facts of; "" otherwise.
    """

    kind: StepKind
    items: tuple[str, ...] = ()
    command: tuple[str, ...] | None = None
    text: str = ""


def said(*sentences: str) -> tuple[Step, ...]:
    """Return a step for each sentence of advice on what another record holds."""
    return tuple(Step(kind="said", text=told) for told in sentences)
