"""A diagnosis by hand."""

from typing import Any

from halfwise.records import NodeName, Run, Rung, Sign, replace, said
from tests.unit.reporting.runs import run, verdict


def rungs() -> tuple[Rung, ...]:
    return (
        Rung(
            rung=1,
            name="harness",
            passed=True,
            how="measured",
            cause="3 samples fit the model.",
            evidence=(Sign(severity="warning", text="There is a single sample."),),
        ),
        Rung(
            rung=2,
            name="export",
            passed=None,
            how="skipped",
            cause="Nobody told.",
            advice=said("Give --expected."),
        ),
        Rung(
            rung=4,
            name="fp32",
            passed=False,
            how="measured",
            cause="A kernel is wrong, at b.",
            nodes=(NodeName("b"),),
            evidence=(
                Sign(severity="error", text="Off by 0.3.", nodes=(NodeName("b"),)),
                Sign(severity="info", text="With optimization level 0: still wrong."),
            ),
            advice=said("Report it."),
        ),
    )


def diagnosis(*, passed: bool = False, **changed: Any) -> Run:
    looked = rungs()[:2] if passed else rungs()
    values = {
        "kind": "diagnose",
        "plan": None,
        "verdict": verdict(passed=passed, reasons=() if passed else (looked[-1].cause,)),
        "diagnosis": looked,
        "next_step": said("Report it."),
    }
    return replace(run(), **values | changed)
