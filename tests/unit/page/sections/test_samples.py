from math import inf

from halfwise.page.sections import samples
from tests.unit.page.test_document import stored
from tests.unit.reporting.runs import verdict


def of(*names: str, **changed):
    return samples(stored(verdict=verdict(samples=names, **changed)))


def test_the_worst_come_first_and_the_table_has_all() -> None:
    section = of("a", "b", "c", excesses=(0.1, inf, 0.5))
    assert section is not None
    (table,) = section.facts
    assert table.rows == (("b", "inf"), ("c", "0.5"), ("a", "0.1"))
    many = [f"s{i}" for i in range(5000)]
    section = of(*many, excesses=(0.0,) * len(many))
    assert section is not None
    assert len(section.facts[0].rows) == 5000


def test_a_run_without_errors_of_samples_has_no_such_section() -> None:
    assert of("a", "b") is None
