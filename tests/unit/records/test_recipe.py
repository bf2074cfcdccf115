import pytest

from halfwise.records import version_of
from tests.unit.tensorrt.recipes.made import recipe


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("8.6", (8, 6)),
        ("10", (10, 0)),
        ("10.16.1.11", (10, 16)),
        ("11.4.0", (11, 4)),
        ("9.0.1.post12.dev4", (9, 0)),
        ("10.3.0.26-1+cuda12.5", (10, 3)),
        ("8.6 GA", (8, 6)),
        ("v8.6", (8, 6)),
        (" 11\n", (11, 0)),
    ],
)
def test_version_of(text, version):
    assert version_of(text) == version
    assert recipe(tensorrt=text).version == version


@pytest.mark.parametrize("text", ["", "ten", "10.", "10..1", "-8.6", "8.6-rc1", "8.6\n9"])
def test_what_is_no_version(text):
    with pytest.raises(ValueError, match="is no version"):
        version_of(text)
