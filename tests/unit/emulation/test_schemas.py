from halfwise.emulation.schemas import signature

MICROSOFT = "com.microsoft"


def test_slots_of_operators_that_onnx_runtime_brings_along():
    found = signature(MICROSOFT, "SkipLayerNormalization", 1)
    assert found is not None
    floats = {"tensor(float)", "tensor(float16)"}
    assert all(slot >= floats for slot in found.inputs)
    assert [slot >= floats for slot in found.outputs] == [True, False, False, True]


def test_types_that_a_slot_names_itself():
    found = signature("ai.onnx.ml", "Normalizer", 1)
    assert found is not None
    assert found.outputs == (frozenset({"tensor(float)"}),)


def test_what_it_does_not_know():
    assert signature("com.example", "Swirl", 1) is None
    assert signature(MICROSOFT, "Gelu", 0) is None
    assert signature(MICROSOFT, "Conv", 1) is None
