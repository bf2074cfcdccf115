"""What names say against a kind, and what outweighs it."""

from typing import get_args

import pytest

from halfwise.metrics.names import begins, is_against, is_weights
from halfwise.records import Kind


@pytest.mark.parametrize(
    ("kind", "name", "against"),
    [
        ("class-scores", "facelandmarks", True),  # long words are found anywhere
        ("class-scores", "composed", False),  # short ones begin a word
        ("class-scores", "kpsOut", True),
        ("class-scores", "landmark_probs", False),
        ("class-scores", "scores", False),
        ("embedding", "scores", True),
        ("embedding", "joint_embedding", False),
        ("boxes", "bbox_regression", True),
        ("boxes", "box_coordinates", False),
        ("mask", "probability_map", False),
        ("flow", "flower", True),
        ("waveform", "audio_features", True),
    ],
)
def test_a_name_speaks_against_a_kind(kind: Kind, name: str, against: bool) -> None:
    assert is_against(kind, name) is against


@pytest.mark.parametrize("kind", get_args(Kind))
def test_no_kind_is_spoken_against_by_its_own_name(kind: Kind) -> None:
    assert not is_against(kind, {"waveform": "audio"}.get(kind, kind))
    assert not is_against(kind, "output")


def test_weights_and_words() -> None:
    assert is_weights("crossAttention.1")
    assert not is_weights("output")
    assert begins("pred_boxes", "box")
    assert not begins("inbox", "box")
