import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.metrics.rare import Rare, common_value

classes = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def counted(pairs, common):
    rare = Rare()
    for reference, candidate in pairs:
        rare.add(np.array(reference), np.array(candidate), common)
    return rare


@pytest.mark.parametrize(
    ("arrays", "value"),
    [
        ([[0, 0, 0, 1]], (0, 1)),
        ([[7, 7], [7, 1, 2]], (7, 2)),
        ([[0, 1], [0, 1]], None),
        ([[True, True, False]], (1, 1)),
        ([[1.0, 1.0]], None),
        ([["a", "a"]], None),
        ([[]], None),
        ([], None),
    ],
)
def test_the_value_of_more_than_half(arrays, value):
    found = [np.array(a, None if a else int) for a in arrays]
    assert common_value(found) == value


def test_few_positives_that_are_lost_agree_nowhere():
    reference = np.zeros(1000, bool)
    reference[:6] = True
    rare = counted([(reference, np.zeros(1000, bool))], 0)
    assert rare.agreement(6) == 0
    assert counted([(reference, reference)], 0).agreement(6) == 1
    flooded = np.arange(1000) < 12
    assert counted([(reference, flooded)], 0).agreement(6) == pytest.approx(12 / 18)


@given(classes, classes)
def test_of_two_values_it_is_the_dice_coefficient(one, other):
    count = min(len(one), len(other))
    left, right = (np.array(a[:count]) > 1 for a in (one, other))
    both = left.sum() + right.sum()
    dice = 2 * (left & right).sum() / both if both else 1.0
    assert counted([(left, right)], 0).agreement(int(left.sum())) == pytest.approx(dice)


@given(st.lists(st.tuples(classes, st.randoms()), min_size=1, max_size=4))
def test_it_never_rises_as_samples_come(samples):
    pairs = [(c, [v if r.random() < 0.7 else r.randrange(4) for v in c]) for c, r in samples]
    total = sum(int(np.count_nonzero(reference)) for reference, _ in pairs)
    rare, before = Rare(), 1.0
    for reference, candidate in pairs:
        rare.merge(counted([(reference, candidate)], 0))
        assert rare.agreement(total) <= before
        before = rare.agreement(total)
