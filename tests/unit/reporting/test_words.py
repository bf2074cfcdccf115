"""Every kind has words, and the words of example runs are those of `words.txt`.

`python -m tests.unit.reporting.test_words` writes the file anew.
"""

import re
import string
from collections.abc import Callable, Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any, get_args

import pytest

from halfwise import records
from halfwise.records import (
    AdjustedConstant,
    Criterion,
    LadderRung,
    MetricResult,
    NearPlan,
    NodeName,
    Remark,
    TensorName,
    Unsupported,
    Worth,
)
from halfwise.records.judged import NotBatched
from halfwise.reporting import causes, diagnosis, engines, guards, remarks, rungs, steps
from halfwise.reporting import verdict as of_verdicts
from halfwise.reporting import view as whole
from halfwise.reporting.parts import Report, Table
from halfwise.reporting.plan import chosen_line
from halfwise.wording import filled
from tests.unit.reporting.comparisons import comparison
from tests.unit.reporting.diagnoses import diagnosis as diagnosed
from tests.unit.reporting.engine_runs import engine_round
from tests.unit.reporting.engine_runs import engines as built
from tests.unit.reporting.runs import (
    baseline,
    guard,
    kept,
    plan,
    run,
    search,
    verdict,
    verification,
)
from tests.unit.reporting.test_curve import MADE, ONE
from tests.unit.reporting.test_repairs import SCALED

WORDS = Path(__file__).with_name("words.txt")
BROUGHT = {"worse", "not-real", "unjudged", "cause", "rung"}
"""Kinds of failures that bring their words."""
TABLES: tuple[tuple[Mapping[Any, Any], object, set[str]], ...] = (
    (remarks.REMARKS, records.RemarkKind, set()),
    (remarks._WORDS, records.FailureKind, BROUGHT),
    (guards.CAUSES, records.GuardKind, set()),
    (guards._WORDS, records.GuardKind, set()),
    (steps._WORDS, records.NoteKind, set()),
    (steps._WORDS_STEPS, records.StepKind, set()),
    (rungs._RUNGS, records.EngineRung, set()),
    (rungs._ENDS_OF_RUNGS, records.RungEnd, set()),
    (rungs._CAUSES, records.CauseKind, set()),
    (rungs._MOVES, records.MoveKind, set()),
    (rungs._REFUSALS, records.RefusalKind, set()),
    (rungs._SPARED, records.SparedKind, set()),
    (rungs._BY, records.RightBy, set()),
    (causes._FAULTS, records.PairFault, set()),
    (causes._RIGHT, records.Right, set()),
    (causes.DONE, records.RepairRule, set()),
    (of_verdicts._UNJUDGED, records.UnjudgedKind, set()),
    (of_verdicts._WHY, NotBatched, set()),
    (whole._WHAT, records.FigureKind, set()),
    (diagnosis.QUESTIONS, records.RungName, set()),
    (diagnosis._SYMPTOMS, records.SymptomKind, set()),
    (engines.WORDS, records.Precision, set()),
)


@pytest.mark.parametrize("table", range(len(TABLES)))
def test_every_kind_has_words(table: int) -> None:
    told, kinds, brought = TABLES[table]
    assert told.keys() | brought == {*_literals(kinds)}


def _literals(kinds: object) -> Iterator[object]:
    for one in get_args(kinds):
        yield from _literals(one) if get_args(one) else (one,)


TEMPLATES = (
    *(remarks.REMARKS, remarks._WORDS, guards._WORDS, rungs._CAUSES, rungs._SPARED),
    *(causes._SUMMARIES, causes._FAULTS, of_verdicts._UNJUDGED),
)


@pytest.mark.parametrize("table", range(len(TEMPLATES)))
def test_every_part_of_a_template_can_be_filled(table: int) -> None:
    for template in TEMPLATES[table].values():
        pieces = [
            part for choice in re.findall(r"\[([^]]*)\]", template) for part in choice.split("|")
        ]
        for text in (re.sub(r"\[[^]]*\]", "", template), *pieces):
            fields = [(name, form) for _, name, form, _ in string.Formatter().parse(text) if name]
            facts: dict[str, str | float] = {name: 2.0 if form else "n" for name, form in fields}
            assert "{" not in filled(text, facts)


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
    LadderRung(rung="fp32", passed=True, by="labels", cost=2.0, bytes=4096),
    LadderRung(rung="tf32", passed=False, error=3.0, low_share=1.0),
    LadderRung(rung="fp16", passed=True, kept=2, candidates=9, cost=1.5, chosen=True),
)
TOP1 = MetricResult(name="top1", reference=0.98, candidate=0.96, allowed_drop=0.01, passed=False)
LITTLE = Worth(cost=2.9, fp32=3.0, nearest=NearPlan(kept=12, cost=1.2, error=3.4))
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
    "a diagnosis": lambda: diagnosis.diagnosed(diagnosed()),
    "a diagnosis that found nothing": lambda: diagnosis.diagnosed_screen(diagnosed(passed=True)),
    "a comparison": lambda: diagnosis.comparison(comparison()),
    "a plan to choose": lambda: Report(chosen_line(MADE, ONE, Criterion(), 3, 2), None, "", ()),
}


def written(report: Report) -> Iterator[str]:
    yield from filter(None, (report.title, report.caution, report.about))
    for part in report.parts:
        if isinstance(part, Table):
            yield f"{part.title} ({part.note})" if part.note else part.title
            yield from (
                f"  {' | '.join(row)}" for row in ([c.title for c in part.columns], *part.rows)
            )
        else:
            yield from (part.title, *(f"  {line}" for line in part.lines))


def words() -> str:
    found = (f"== {name}\n" + "\n".join(written(make())) for name, make in EXAMPLES.items())
    return "\n\n".join(found) + "\n"


def test_the_words_of_example_runs() -> None:
    assert words().splitlines() == WORDS.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    WORDS.write_text(words(), encoding="utf-8")
