"""Every kind has words, and the words of example runs are those of `words.txt`.

`python -m tests.unit.reporting.test_words` writes the file anew. A new kind of fact gets an
entry in `facts_planned.py` or `facts_judged.py`; all other tests assert facts, not sentences.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import inf
from pathlib import Path
from typing import get_args

import pytest

from halfwise import records
from halfwise.records import (
    AdjustedConstant,
    Criterion,
    LadderRung,
    MetricResult,
    NodeName,
    Remark,
    TensorName,
    Unsupported,
    Worth,
)
from halfwise.records.judged import NotBatched
from halfwise.reporting import diagnosis
from halfwise.reporting import engines as inspections
from halfwise.reporting import view as whole
from halfwise.reporting.parts import WORDS as WORDS_OF
from halfwise.reporting.parts import Lines, Report, Table
from tests.unit.reporting.comparisons import comparisons
from tests.unit.reporting.diagnoses import diagnosis as diagnosed
from tests.unit.reporting.engine_runs import engine_round
from tests.unit.reporting.engine_runs import engines as built
from tests.unit.reporting.phrases import SECTIONS
from tests.unit.reporting.runs import (
    baseline,
    guard,
    kept,
    observations,
    plan,
    run,
    search,
    verdict,
    verification,
)
from tests.unit.reporting.test_curve import MADE
from tests.unit.reporting.test_inspection import BUILT, GIVEN, inspection
from tests.unit.reporting.test_precision import PROOF
from tests.unit.reporting.test_repairs import SCALED

WORDS = Path(__file__).with_name("words.txt")
BROUGHT = {"worse", "not-real", "unjudged", "cause", "rung"}
"""Kinds of failures that bring their words."""
TABLES: Mapping[str, object] = {
    "remark": records.RemarkKind,
    "failure": records.FailureKind,
    "suspicion": records.GuardKind,
    "guard": records.GuardKind,
    "note": records.NoteKind,
    "step": records.StepKind,
    "end": records.RungEnd,
    "in full": records.RungEnd,
    "engines": records.CauseKind,
    "spared": records.SparedKind,
    "right": records.RightBy,
    "repair": records.RepairRule,
    "unjudged": records.UnjudgedKind,
    "sizes": NotBatched,
    "figure": records.FigureKind,
    "tested": records.RungName,
    "symptom": records.SymptomKind,
    "precision": records.Precision | records.EngineRung,
}
"""Groups of `words.toml`, and the kinds that they have words for."""


@pytest.mark.parametrize("group", TABLES)
def test_every_kind_has_words(group: str) -> None:
    brought = BROUGHT if group == "failure" else set()
    assert {*_literals(TABLES[group])} - brought <= WORDS_OF[group].keys()


def _literals(kinds: object) -> Iterator[object]:
    for one in get_args(kinds):
        yield from _literals(one) if get_args(one) else (one,)


PLAN = plan(
    (
        kept("/r", guard=None, error_without=None, kept_by="rule"),
        *(kept(f"/f{i}", error_without=2.0 + i) for i in range(20)),
    ),
    constants=(
        AdjustedConstant(
            name=TensorName("eps"), minimum=1e-12, maximum=1e-12, elements=1, consumers=()
        ),
        AdjustedConstant(
            name=TensorName("mask"), minimum=-3.4e38, maximum=0, elements=64, consumers=()
        ),
    ),
    data_movement=(NodeName("/t"), NodeName("/r")),
    unsupported=(
        Unsupported(node=NodeName("/n"), op="NonMaxSuppression", reason="takes FP32 only"),
    ),
    repairs=(SCALED,),
    remarks=(Remark(kind="emulated"),),
)
RUNGS = (
    LadderRung(rung="fp32", passed=True, by="labels", cost=2.0),
    LadderRung(rung="tf32", passed=False, error=3.0),
    LadderRung(rung="fp16", passed=True, kept=2, candidates=9, cost=1.5, chosen=True),
)
TOP1 = MetricResult(name="top1", reference=0.98, candidate=0.96, allowed_drop=0.01, passed=False)
LITTLE = Worth(cost=2.9, fp32=3.0)
ENDED = search(exhausted=True, budget=1500.0, ended_by=("work",), joined=("h0",))

EXAMPLES: Mapping[str, Callable[[], Report]] = {
    "a plan that passed": lambda: whole.report(run()),
    "its first screen": lambda: whole.screen(run()),
    "a plan with all there is": lambda: whole.report(
        run(plan=PLAN, curve=MADE, rungs=RUNGS, worth=LITTLE, guards=(guard("/f1"),))
    ),
    "its first screen, failed": lambda: whole.screen(
        run(plan=PLAN, rungs=RUNGS, verdict=verdict(passed=False, reasons=("output y is off",)))
    ),
    "a search that was cut": lambda: whole.report(
        run(plan=plan((kept("/a"),), minimal=False), search=ENDED)
    ),
    "a metric": lambda: whole.report(
        run(
            criterion=Criterion(metric="top1", metric_drop=0.01),
            baseline=baseline(metric=TOP1),
            verdict=verdict(metric=TOP1, passed=False),
        )
    ),
    "engines": lambda: whole.report(
        run(engines=built(rounds=(engine_round(2, measured=inf), engine_round(3, passed=True))))
    ),
    "engines without a low one": lambda: whole.report(
        run(engines=built(rung="tf32", keep=(), delivered=None))
    ),
    "a verification": lambda: whole.report(verification()),
    "its first screen, verified": lambda: whole.screen(verification()),
    "a first screen without a low engine": lambda: whole.screen(
        run(engines=built(rung="tf32", keep=()))
    ),
    "a diagnosis": lambda: diagnosis.diagnosed(diagnosed()),
    "a diagnosis that found nothing": lambda: diagnosis.diagnosed(diagnosed(passed=True)),
    **{
        f"comparison {i}": partial(diagnosis.comparison, one)
        for i, one in enumerate(comparisons(), 1)
    },
    "an engine by its inspector": lambda: inspections.inspected(PROOF, "model.engine"),
    "an engine that was inspected": lambda: inspections.looked_into(inspection()),
    "an engine that could not be": lambda: inspections.looked_into(
        inspection(proof=None, latency=None, notes=("It does not run.",))
    ),
    "an engine that was built": lambda: inspections.built(BUILT),
    "the user's own engine": lambda: Report("", None, "", inspections.given_parts(GIVEN)),
    "ranges": lambda: inspections.observed(observations(constants=PLAN.constants), 10_000),
    "devices": lambda: Report("", None, "", whole.device_parts((built(), built()))),
    "a repaired plan": lambda: whole.screen(run(plan=plan((), repairs=(SCALED,)))),
}


def written(report: Report, before: dict[Lines | Table, None]) -> Iterator[str]:
    """Yield the lines of a report; of a part that an earlier report has, the title alone."""
    yield from filter(None, (report.title, report.reason, report.caution, report.about))
    for part in report.parts:
        titles = [f"{part.title} (as above)" if part in before else part.title]
        if isinstance(part, Table):
            titles = [f"{titles[0]} ({part.note})" if part.note else titles[0]]
            titles += [] if part in before else [f"  {' | '.join(c.title for c in part.columns)}"]
            rows = [f"  {' | '.join(row)}" for row in part.rows]
        else:
            rows = [f"  {line}" for line in part.lines]
        yield from (titles if part in before else [*titles, *rows])
        before[part] = None


def words() -> str:
    before: dict[Lines | Table, None] = {}
    found = [f"== {name}\n" + "\n".join(written(make(), before)) for name, make in EXAMPLES.items()]
    found += [f"-- {name}\n" + "\n".join(tell()) for name, tell in SECTIONS.items()]
    return "\n\n".join(found) + "\n"


def test_the_words_of_example_runs() -> None:
    assert words().splitlines() == WORDS.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    WORDS.write_text(words(), encoding="utf-8")
