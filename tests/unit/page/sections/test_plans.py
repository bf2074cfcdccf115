from halfwise.page.sections import plans
from tests.unit.page.test_document import stored
from tests.unit.records.curves import curve, point


def test_plans_are_told_with_their_cost_and_error() -> None:
    made = curve(point("0", 1.5, 0.5), point("0-1", 2.0, 0.2), plan=0)
    section = plans(stored(curve=made))
    assert section is not None
    _, table = section.facts
    names = [column.title for column in table.columns]
    assert [dict(zip(names, row, strict=True))["cost"] for row in table.rows] == ["1.5 ×", "2 ×"]


def test_a_run_without_plans_has_no_such_section() -> None:
    assert plans(stored(curve=None)) is None
