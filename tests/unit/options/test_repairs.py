"""Which repairs options ask for, and what contradicts itself."""

import pytest

from halfwise.errors import UsageError
from halfwise.options.options import RULES, understand


def test_rules_are_left_out_by_name_or_all():
    def asked(**options):
        return understand("x.npz", options).settings

    assert asked().no_repair == ()
    assert asked(no_repair=True).no_repair == asked(no_repair=["all"]).no_repair == RULES
    assert asked(no_repair=False).no_repair == ()
    assert asked(no_repair=["mask", "scale"]).no_repair == ("scale", "mask")
    assert asked(no_repair="mask, scale").no_repair == ("scale", "mask")
    assert asked(no_repair="mask").no_repair == ("mask",)
    assert asked(allow_bf16=True, allow_tf32=True).allow == {"bf16", "tf32"}
    assert asked(allow_bf16=True).allow == {"bf16"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"no_repair": ["scael"]}, "--no-repair is 'scael'; expected a repair rule: scale"),
        ({"no_repair": "scale,fald"}, "--no-repair is 'fald'; expected a repair rule: scale"),
        ({"allow_bf16": True, "to": "bf16"}, "with --to bf16 every node already has it"),
    ],
)
def test_contradictions_are_told(options, told):
    with pytest.raises(UsageError) as refused:
        understand("x.npz", options)
    assert told in refused.value.message
