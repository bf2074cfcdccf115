"""What a candidate is compared with."""

import numpy as np
import pytest

from halfwise.errors import CaseError
from halfwise.metrics.targets import by_sample, by_target, class_labels

TRUE = [{"a": np.zeros(2), "b": np.ones(3)}, {"a": np.ones(2), "b": np.ones(3)}]
FOUND = [{"a": np.full(2, 7.0), "b": np.zeros(3)}] * 2
SCORES = np.zeros((2, 4))


def test_each_sample_comes_with_its_label_or_none() -> None:
    assert [label for *_, label in by_sample(TRUE, FOUND, None)] == [None, None]
    assert [label for *_, label in by_sample(TRUE, FOUND, [3, 4])] == [3, 4]
    with pytest.raises(CaseError, match="1 labels for 2 samples"):
        list(by_sample(TRUE, FOUND, [3]))


def test_the_target_is_the_label_or_else_the_reference() -> None:
    own = list(by_target(TRUE, FOUND, None, tuple))
    assert [name for name, *_ in own] == ["a", "b", "a", "b"]
    assert [target.tolist() for _, target, _ in own[:2]] == [[0, 0], [1, 1, 1]]
    (first, _) = by_target(TRUE, FOUND, [[5, 6], [7, 8]], lambda _: ("a",))
    assert first[1].tolist() == [5, 6]
    assert first[2].tolist() == [7, 7]


@pytest.mark.parametrize("label", [[0, 3], np.array([1.0, 2.0]), [[3], [0]]])
def test_classes_of_the_output_are_labels(label):
    assert class_labels(label, SCORES, "y").tolist() == np.ravel(label).tolist()


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ([0, 4], "class 4, but output 'y' has 4 classes: 0 to 3"),
        ([-1, 0], "class -1"),
        ([np.nan, 0], "class nan"),
        ([0, 1, 2], "holds 3"),
        (["a", "b"], "of type <U1"),
    ],
)
def test_other_numbers_are_none(label, told):
    with pytest.raises(CaseError, match=told):
        class_labels(label, SCORES, "y")
