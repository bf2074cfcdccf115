from halfwise.reporting.causes import quantisation_lines
from tests.unit.reporting.facts_planned import LOSS


def test_nothing_is_told_where_nobody_looked_or_no_pair_has_to_go():
    assert quantisation_lines(None) is None
    assert quantisation_lines(LOSS.model_copy(update={"needed": 0, "causes": ()})) is None
    found = quantisation_lines(LOSS.model_copy(update={"causes": LOSS.causes * 3}))
    assert found is not None
    assert len(found.lines) == 4
