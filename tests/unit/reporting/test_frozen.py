from halfwise.records import FrozenSize, NodeName, TensorName
from halfwise.reporting.frozen import frozen_advice, frozen_cause

BATCH = FrozenSize(
    axes={TensorName("x"): 0},
    batch=True,
    given=1,
    runs=2,
    nodes=(NodeName("/Reshape"),),
    shown=True,
    failure="ONNX Runtime failed.",
)


def test_a_batch_that_was_shown():
    assert frozen_cause(BATCH) == (
        "The model declares the axis dynamic, fails on batches of 1, and runs on batches of 2: "
        "/Reshape holds the size of the export in a constant; with 1 in its place, the model runs."
    )
    assert "arrays of [samples, 2, …]" in frozen_advice(BATCH)[1]


def test_a_batch_that_was_not():
    text = frozen_cause(BATCH.model_copy(update={"shown": False}))
    assert text.endswith("constant, as far as the file shows. ONNX Runtime failed.")
    text = frozen_cause(BATCH.model_copy(update={"nodes": (), "shown": False}))
    assert text.endswith("no constant is known that holds this size. ONNX Runtime failed.")


def test_a_length():
    found = FrozenSize(
        axes={TensorName("a"): 2, TensorName("b"): 1},
        batch=False,
        given=9,
        runs=6,
        nodes=(NodeName("r"), NodeName("s")),
        shown=False,
        failure="It failed.",
    )
    text = frozen_cause(found)
    assert "where axis 1/2 of 'a' and 'b' is 9 long, and runs where it is 6 long: r, s hold" in text
    assert frozen_advice(found)[1] == "Until then, give data whose axis is 6 long."
