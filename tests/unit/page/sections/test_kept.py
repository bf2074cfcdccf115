from halfwise.page.sections import Stored, kept
from halfwise.reporting.remarks import CAUSES
from halfwise.wording import capital
from tests.unit.page.test_document import stored
from tests.unit.reporting.runs import run, verification


def test_that_every_kept_node_has_a_row_of_its_own() -> None:
    section, plan = kept(stored()), run().plan
    assert section is not None
    assert plan is not None
    rows = section.facts[0].rows
    assert [row[0] for row in rows] == [node.node for node in plan.keep]
    assert {row[2] for row in rows} == {"FP32"}
    assert rows[0][3] == capital(CAUSES["square"])


def test_that_a_run_without_a_plan_has_none() -> None:
    assert kept(Stored(verification())) is None
