"""Which repairs options ask for, and what contradicts itself."""

import pytest

from halfwise.errors import UsageError
from halfwise.options.options import understand


def test_what_is_done_only_on_request():
    def asked(**options):
        return understand("x.npz", options).settings

    assert asked(allow_bf16=True, allow_tf32=True).allow == {"bf16", "tf32"}
    assert asked(allow_bf16=True).allow == {"bf16"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"allow_bf16": True, "to": "bf16"}, "with --to bf16 every node already has it"),
    ],
)
def test_contradictions_are_told(options, told):
    with pytest.raises(UsageError) as refused:
        understand("x.npz", options)
    assert told in refused.value.message
