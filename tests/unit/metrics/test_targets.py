import numpy as np
import pytest

from halfwise.errors import CaseError
from halfwise.metrics.targets import class_labels

SCORES = np.zeros((2, 4))


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
