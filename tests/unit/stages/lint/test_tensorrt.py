import pytest

from halfwise.stages.lint.tensorrt import opsets
from tests.unit.stages.lint.said import said


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((8, 5), (1, 17)),
        ((8, 6), (1, 17)),
        ((9, 3), (1, 19)),
        ((10, 1), (9, 20)),
        ((10, 14), (9, None)),
        ((10, 16), (9, 24)),
        ((11, 4), (9, 25)),
    ],
)
def test_opsets(version, expected):
    assert opsets(version) == expected


def test_what_is_said(tmp_path):
    assert said("late_opset", tmp_path) == "opset 18; TensorRT 8.6 reads up to 17"
    assert said("native_layer_norm", tmp_path) == "TensorRT 8.5 has no LayerNormalization; 8.6 has"
    assert said("cast", tmp_path) == (
        "1 Cast have a type of their own (a constraint ends the build in castLayer.cpp)"
    )
