import pytest

from halfwise.graph.intake import Flaw, Repair
from halfwise.reporting.intake import repair_notes


@pytest.mark.parametrize("flaw", Flaw)
def test_every_repair_has_a_sentence_with_a_few_names(flaw):
    (note,) = repair_notes([Repair(flaw, tuple("abcdef"))])
    assert note.startswith("repaired on the way in: ")
    if flaw not in (Flaw.NAMELESS, Flaw.UNSORTED):
        assert note.endswith("(a, b, c, d, and 2 more values)") or "(a, b, c, d, and 2" in note
