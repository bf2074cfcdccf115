from halfwise.pipeline.comparing import reference
from halfwise.pipeline.diagnosing.reproducer import save_reproducer
from halfwise.stages.compare import Walk, compared
from tests.unit.stages.compare.copies import SAMPLES, network, side


def walked(made, **altered):
    right = reference(network(), SAMPLES, made.settings)
    walk = Walk(network(), SAMPLES, right, side(network(**altered).model))
    walk.all()
    return walk, compared(walk)


def test_nothing_to_cut_out(subject):
    made = subject(fake={})
    walk, found = walked(made)
    assert save_reproducer(made.engines, walk, found, made.folder, None) == ()
    assert list(made.folder.iterdir()) == []


def test_a_part_whose_engine_is_right_says_so(subject):
    made = subject(fake={})
    walk, found = walked(made, d=1.0, y=1.2)
    (told,) = save_reproducer(made.engines, walk, found, made.folder, "s1")
    assert told.startswith("reproducer/ holds ")
    assert "an engine of them alone is right" in told
