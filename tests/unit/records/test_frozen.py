import pytest
from pydantic import ValidationError

from halfwise.records import FrozenSize, NodeName, Rung, TensorName


def test_it_comes_back_from_json_and_older_rungs_have_none():
    found = FrozenSize(
        axes={TensorName("x"): 0},
        batch=True,
        given=1,
        runs=2,
        nodes=(NodeName("r"),),
        shown=True,
        failure="It failed.",
    )
    assert FrozenSize.model_validate_json(found.model_dump_json()) == found
    old = {"rung": 1, "name": "harness", "passed": True, "how": "measured", "cause": ""}
    assert Rung.model_validate(old).frozen is None
    with pytest.raises(ValidationError):
        FrozenSize.model_validate(found.model_dump() | {"other": 1})
