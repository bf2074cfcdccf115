from halfwise.reporting.causes import quantisation_lines
from tests.unit.reporting.facts_planned import LOSS
from tests.unit.reporting.runs import verification


def test_nothing_is_told_where_nobody_looked_or_no_pair_has_to_go():
    def lines(**changed):
        return quantisation_lines(verification(quantisation=LOSS.model_copy(update=changed)))

    assert quantisation_lines(verification()) is None
    assert lines(needed=0, causes=()) is None
    found = lines(causes=LOSS.causes * 3)
    assert found is not None
    assert len(found.lines) == 4
