"""What operators demand of element types; files with wrong ones: tests/end_to_end/test_types.py."""

import pytest

from halfwise.graph.types import signature

MICROSOFT = "com.microsoft"
FLOATS = {"tensor(float)", "tensor(float16)"}


def test_slots_of_operators_that_onnx_runtime_brings_along() -> None:
    found = signature(MICROSOFT, "SkipLayerNormalization", 1)
    assert found is not None
    assert all(slot.allowed >= FLOATS for slot in found.inputs)
    assert [slot.allowed >= FLOATS for slot in found.outputs] == [True, False, False, True]


def test_types_that_a_slot_names_itself() -> None:
    found = signature("ai.onnx.ml", "Normalizer", 1)
    assert found is not None
    (output,) = found.outputs
    assert output.allowed == {"tensor(float)"}


@pytest.mark.parametrize("op", ["SimplifiedLayerNormalization", "Conv"])
def test_operators_in_the_domain_of_onnx(op: str) -> None:
    found = signature("", op, 17)
    assert found is not None
    assert found.inputs[0].allowed >= FLOATS


def test_what_is_not_known() -> None:
    assert signature("com.example", "Swirl", 1) is None
    assert signature(MICROSOFT, "Gelu", 0) is None
    assert signature(MICROSOFT, "Conv", 1) is None
