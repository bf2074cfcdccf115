import onnx

from halfwise.tensorrt.operators import AT_THE_LATEST, NEVER, SINCE, support


def test_each_operator_is_onnx_own_and_in_one_table():
    tables = (set(SINCE), set(AT_THE_LATEST), set(NEVER))
    assert sum(map(len, tables)) == len(set.union(*tables))
    # The installed onnx may be older than an operator.
    assert len([op for op in set.union(*tables) if not onnx.defs.has(op)]) <= 1


def test_the_version_is_told():
    assert support("LayerNormalization") == "TensorRT 8.6 and later have LayerNormalization."
    assert "perhaps earlier" in support("Gelu")
    assert support("Unique").startswith("No TensorRT up to 10.15 has Unique")
    assert "not in every form" in support("Resize")
    assert support("MyPlugin") == ""
