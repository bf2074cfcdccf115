import pytest

from halfwise.errors import UsageError
from halfwise.records import version_of
from halfwise.tensorrt.versions import (
    OLDEST_PARSER,
    has_operator,
    highest_opset,
    known_version,
    opsets,
)


@pytest.mark.parametrize(
    ("text", "opset"),
    [
        *(("8.2", 13), ("8.6.1", 17), ("9.3", 19), ("10", 20), ("10.1", 20), ("10.14", 20)),
        *(("10.15", 24), ("10.16.1.11", 24), ("11", 25), ("12.0", 25)),
    ],
)
def test_the_highest_opset_that_is_read_for_sure(text, opset):
    assert highest_opset(version_of(text)) == opset


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


@pytest.mark.parametrize(
    ("text", "version"),
    [
        *(("8.6", (8, 6)), ("8.5.3.1", (8, 5)), ("v10.13.0", (10, 13)), (" 11.4 ", (11, 4))),
        *(("11", (11, 0)), ("v8.6", (8, 6)), ("9.3.0.post12.dev1", (9, 3)), ("9", (9, 0))),
    ],
)
def test_versions(text, version):
    assert known_version(text) == version


@pytest.mark.parametrize(
    "text", ["8.4", "12.0", "ten", "", "8.6 9", "8.6\n9", "8.6-rc1", "-11", "v"]
)
def test_what_is_no_known_version(text):
    with pytest.raises(UsageError, match="no version of TensorRT that is known here"):
        known_version(text)


def test_old_parsers_and_what_8_may_mean():
    assert known_version("8.4", oldest=OLDEST_PARSER) == (8, 4)
    with pytest.raises(UsageError, match=r"8\.5 and 8\.6 differ"):
        known_version("8", oldest=OLDEST_PARSER)


def test_operators_come_with_versions():
    assert not has_operator("LayerNormalization", (8, 5))
    assert has_operator("LayerNormalization", (8, 6))
    assert not has_operator("RMSNormalization", (10, 9))
    assert has_operator("RMSNormalization", (10, 15))
    assert has_operator("Gelu", (11, 0))
    assert has_operator("Conv", (8, 0))
    assert not has_operator("Unique", (11, 0))
