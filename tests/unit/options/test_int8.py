import pytest

from halfwise.errors import UsageError
from halfwise.options.options import understand


def test_int8_is_beside_fp16():
    settings = understand("x.npz", {"to": "int8", "ranges": "entropy"}).settings
    assert (settings.int8, settings.fmt.name, settings.ranges) == (True, "fp16", "entropy")
    plain = understand("x.npz", {"to": "bf16"}).settings
    assert (plain.int8, plain.fmt.name, plain.ranges) == (False, "bf16", "auto")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ranges": "minmax"}, "--to int8"),
        ({"to": "int8", "keep_above": 10.0}, "--keep-above"),
        ({"to": "int8", "io": "bf16"}, "--io bf16"),
        (
            {"to": "int8", "target": "tensorrt", "trt_worker": ["orin", "cloud"]},
            "plans for one worker",
        ),
    ],
)
def test_options_of_int8_stand_where_they_mean_something(options, says):
    with pytest.raises(UsageError, match=says):
        understand("x.npz", options)
