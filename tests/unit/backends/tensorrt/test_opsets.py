import pytest

from halfwise.backends.tensorrt.opsets import has_operator, highest_opset, version_of
from halfwise.errors import UsageError


@pytest.mark.parametrize(
    ("text", "opset"),
    [
        *(("8.4", 13), ("8.6.1", 17), ("9.3", 19), ("10", 20), ("10.1", 20)),
        *(("10.16.1.11", 24), ("11", 25), ("12.0", 25)),
    ],
)
def test_the_highest_opset(text, opset):
    assert highest_opset(version_of(text)) == opset


@pytest.mark.parametrize("text", ["", "ten", "7.2", "10.x", "10.0-beta", "-1"])
def test_no_version(text):
    with pytest.raises(UsageError, match="--trt-version"):
        version_of(text)


def test_operators_come_with_versions():
    assert not has_operator("LayerNormalization", (8, 5))
    assert has_operator("LayerNormalization", (8, 6))
    assert not has_operator("RMSNormalization", (10, 9))
    assert has_operator("RMSNormalization", (10, 15))
    assert has_operator("Gelu", (11, 0))
    assert has_operator("Conv", (8, 0))
    assert not has_operator("Unique", (11, 0))
