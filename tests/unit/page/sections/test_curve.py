from typing import Any

from halfwise.page.plans import curve
from tests.unit.page.test_document import stored
from tests.unit.records.curves import curve as plans
from tests.unit.records.curves import point, score
from tests.unit.reporting.runs import verdict


def test_what_metrics_require_is_told_as_their_field_writes_it() -> None:
    made = plans(point("", 1.0, 0.5), reference=(score(passed=True),))
    section = curve(stored(curve=made))
    assert section is not None
    data: Any = section.data
    assert data["metrics"] == [{"name": "top1", "falls": False, "required": 0.99}]
    assert data["names"] == [0, "a", 0, "b", 0, "c"]
    assert (data["low"], data["allowed"]) == ("FP16", "rel max ≤ 0.01")


def test_a_run_that_judged_nothing_has_no_such_section() -> None:
    nothing = {"plan": None, "curve": None, "search": None, "baseline": None}
    assert curve(stored(**nothing, verdict=verdict(outputs={}))) is None
