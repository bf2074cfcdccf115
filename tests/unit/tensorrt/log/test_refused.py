import pytest

from halfwise.tensorrt.log.refused import Blamed, blamed

REGION = "{ForeignNode[a/Pow...b/Add]}"
NO_KERNEL = (
    "10: [optimizer.cpp::computeCosts::3869] Error Code 10: Internal Error (Could not find any "
    f"implementation for node {REGION}.)"
)
NOT_BUILT = "2: [builder.cpp::buildSerializedNetwork::751] Error Code 2: Internal Error (Assertion engine != nullptr failed. )"  # noqa: E501


@pytest.mark.parametrize(
    ("status", "lines", "kind", "ends"),
    [
        ("failed", [NO_KERNEL, NOT_BUILT], "no-kernel", ("a/Pow", "b/Add")),
        ("failed", ["mha_fusion.cpp:344: DCHECK(fc1_ && fc2_ && softmax_) failed.", NO_KERNEL],
         "no-kernel", ("a/Pow", "b/Add")),
        ("failed", [f"9: Error Code 9: Myelin ({REGION}: no tactics)"], "compiler",
         ("a/Pow", "b/Add")),
        ("failed", ["1: Error Code 1: Myelin (No Myelin Error exists)"], "compiler", ()),
        ("failed", ["2: [virtualMemoryBuffer.cpp::resizePhysical::145] Error Code 2: OutOfMemory"],
         "unknown", ()),
        ("crashed", [f"[V] [TRT] --------------- Timing Runner: {REGION} (Myelin[0x80000023])"],
         "crash", ("a/Pow", "b/Add")),
        ("timeout", [f"[V] [TRT] =============== Computing costs for {REGION}"],
         "timeout", ("a/Pow", "b/Add")),
        ("timeout", [], "timeout", ()),
        ("failed", [NO_KERNEL.replace(REGION, "a + b")], "no-kernel", ("a", "b")),
        ("failed", [NO_KERNEL, NO_KERNEL.replace("b/Add", "c/Mul")], "no-kernel",
         ("a/Pow", "c/Mul")),
    ],
)  # fmt: skip
def test_how_a_build_was_refused_and_where(status, lines, kind, ends):
    found = blamed(status, lines)
    assert (found.kind, found.ends) == (kind, ends)


def test_a_single_layer_is_both_ends():
    assert Blamed("no-kernel", "PWN(exp2)").ends == ("exp2", "exp2")
    assert Blamed("unknown").ends == ()


def test_the_line_that_tells_of_it_is_neither_the_last_nor_a_warning():
    warning = "warning: onnx2trt_utils.cpp:374: Your ONNX model has INT64 weights."
    found = blamed("failed", [warning, f"error: {NO_KERNEL}", NOT_BUILT, warning])
    assert found.line == (f"Could not find any implementation for node {REGION}.")
    odd = ["error: nobody knows this", warning]
    assert blamed("failed", odd).line == "nobody knows this"
    assert blamed("crashed", ["[V] [TRT] Tactic: 0x3e8", warning, ""]).line == ""
