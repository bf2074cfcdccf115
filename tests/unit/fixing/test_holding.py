from tests import models
from tests.unit.fixing.test_loop import Listener, found, kept


def test_both_are_held_one_after_the_other_and_told():
    listener = Listener()
    fixed = found(models.small_token(), listener)
    (note,) = [n for n in listener.notes if "although the outputs pass" in n]
    assert note.startswith("infinite inside")
    assert "3 tensors; 4 nodes held" in note
    assert fixed.verdict.as_file is not None


def test_a_rule_about_ranges_is_taken_at_its_word():
    fixed = found(models.small_token(), keep_above=1e9)
    assert kept(fixed) == set()
    assert not any(g.kind == "infinite" for g in fixed.guards)
