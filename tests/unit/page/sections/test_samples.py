from dataclasses import replace
from math import inf
from typing import Any

from halfwise.page.document import document
from halfwise.page.sections import samples
from halfwise.records import Preview, RunEvidence
from tests.unit.page.reading import Read
from tests.unit.page.test_document import NASTY, stored
from tests.unit.reporting.runs import verdict


def data(made) -> Any:
    section = samples(made)
    assert section is not None
    return section.data


def of(*names: str, **changed):
    return stored(verdict=verdict(samples=names, **changed))


def test_the_worst_come_first_and_the_table_has_all() -> None:
    found = data(of("a", "b", "c", excesses=(0.1, inf, 0.5)))
    assert found["rows"] == [["b", inf], ["c", 0.5], ["a", 0.1]]
    many = [f"s{i}" for i in range(5000)]
    assert len(data(of(*many, excesses=(0.0,) * len(many)))["rows"]) == 5000


def test_previews_stand_beside_their_errors_and_hostile_names_stay_text() -> None:
    shown = Preview(sample=NASTY, input=NASTY, shape=(1, 3, 9, 9), why="worst", png="AAAA")
    made = replace(of(NASTY, excesses=(0.5,)), evidence=RunEvidence(graph=None, previews=(shown,)))
    (one,) = Read(document(made)).data("samples")["previews"]
    assert (one["sample"], one["input"], one["shape"], one["excess"]) == (
        NASTY, NASTY, "1×3×9×9", 0.5,
    )  # fmt: skip


def test_old_records_have_no_such_section() -> None:
    assert samples(of("a", "b")) is None
