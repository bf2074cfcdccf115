import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.records import AdjustedConstant, KeptNode, Plan, Search, Unsupported
from tests.unit.records.journey import any_of, assert_unchanged


@pytest.mark.parametrize("kind", [KeptNode, Plan, AdjustedConstant, Search, Unsupported])
@given(st.data())
def test_goes_to_json_and_back(kind, data):
    assert_unchanged(data.draw(any_of(kind)))


def test_a_low_format_is_one_of_two():
    values: dict[str, object] = dict.fromkeys(
        ("keep", "data_movement", "constants", "unsupported"), ()
    )
    values |= {"minimal": True, "candidates": 0, "casts": 0}
    assert Plan.model_validate(values | {"low": "bf16"}).low == "bf16"
    with pytest.raises(ValueError, match="low"):
        Plan.model_validate(values | {"low": "\x1b[2J"})


def test_a_kept_node_is_fp32_and_says_why():
    kept = KeptNode.model_validate({"node": "n", "op": "Pow", "reason": "It overflows."})
    assert kept.precision == "fp32"
    with pytest.raises(ValueError, match="precision"):
        KeptNode.model_validate({**kept.model_dump(), "precision": "fp16"})
    with pytest.raises(ValueError, match="reason"):
        KeptNode.model_validate({"node": "n", "op": "Pow"})
