from typing import Any

from halfwise.page.plans import curve
from halfwise.records import Sizes
from tests.unit.page.test_document import stored
from tests.unit.records.curves import curve as plans
from tests.unit.records.curves import point, score
from tests.unit.reporting.runs import verdict


def table(**changed):
    section = curve(stored(**changed))
    assert section is not None
    data: Any = section.data
    found = data["classic"]
    titles = [column["title"] for column in found["columns"]]
    return [dict(zip(titles, row, strict=True)) for row in found["rows"]]


def test_columns_that_nothing_fills_are_left_out_and_the_unknown_is_empty() -> None:
    fp32, *_, own = table(sizes=Sizes(fp32=2**21, plan=2**20))
    assert (fp32["size"], own["size"]) == ("2 MiB", "1 MiB")
    assert (fp32["passed"], own["passed"]) == ("", "yes")
    assert "ms" not in own
    assert own["max error"] == max(o.max_abs for o in verdict().outputs.values())


def test_what_metrics_require_is_told_as_their_field_writes_it() -> None:
    made = plans(point("", 1.0, 0.5), reference=(score(passed=True),))
    section = curve(stored(curve=made))
    assert section is not None
    data: Any = section.data
    data = data["plans"]
    assert data["metrics"] == [{"name": "top1", "falls": False, "required": 0.99}]
    assert data["names"] == [0, "a", 0, "b", 0, "c"]
    assert (data["low"], data["allowed"]) == ("FP16", "rel max ≤ 0.01")


def test_a_run_that_judged_nothing_has_no_such_section() -> None:
    nothing = {"plan": None, "curve": None, "search": None, "baseline": None}
    assert curve(stored(**nothing, verdict=verdict(outputs={}))) is None
