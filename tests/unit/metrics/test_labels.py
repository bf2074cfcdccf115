import numpy as np
import pytest

from halfwise.errors import CaseError
from halfwise.metrics import check_labels


@pytest.mark.parametrize("label", ["cat", None, {"mask": "cat"}])
def test_text_and_nothing_are_no_labels(label):
    with pytest.raises(CaseError, match="takes numbers as labels, and label 1 is"):
        check_labels("top1", [3, label])


@pytest.mark.parametrize("label", [3, [1, 2], {"mask": np.zeros((2, 2))}])
def test_numbers_are(label):
    check_labels("mask-iou", [label])


def test_a_metric_of_ones_own_takes_what_it_likes():
    check_labels("file.py:score", ["cat", None])
    check_labels(None, ["cat"])
