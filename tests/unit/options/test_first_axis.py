"""What a model's results say about the first axis of its inputs."""

from functools import partial

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from halfwise.graph.loading import network_from_proto
from halfwise.inputs import InputSpec, load_inputs
from halfwise.options.loading import input_specs, load_case, load_settled
from halfwise.options.options import Data
from halfwise.records import Criterion
from halfwise.reporting.remarks import note_text

FRAMES = 7
X = np.random.default_rng(0).standard_normal((FRAMES, 4)).astype(np.float32)


def model(
    nodes: list[onnx.NodeProto], axis: str = "time", out: tuple[int | None, ...] = (None,)
) -> onnx.ModelProto:
    weights = helper.make_tensor("w", TensorProto.FLOAT, [4, 4], np.eye(4).ravel() + 0.5)
    kernel = helper.make_tensor("k", TensorProto.FLOAT, [4, 4, 3], np.ones(48) / 9)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [axis, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        [weights, kernel],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


node = helper.make_node
PRODUCT = node("MatMul", ["x", "w"], ["h"])
MEAN = [PRODUCT, node("ReduceMean", ["h"], ["y"], axes=[0], keepdims=0)]
"""One result for all rows."""
ROWS = [PRODUCT, node("Softmax", ["h"], ["y"], axis=1)]
SUMS = [
    PRODUCT,
    node("Constant", [], ["zero"], value_int=0),
    node("CumSum", ["h", "zero"], ["y"]),
]
"""A result for each row, which depends on those before."""
IMAGE = [
    node("Transpose", ["x"], ["t"], perm=[1, 0]),
    node("Constant", [], ["front"], value_ints=[0]),
    node("Unsqueeze", ["t", "front"], ["u"]),
    node("Conv", ["u", "k"], ["y"]),
]
"""Fails on fewer than three rows."""


def shapes(loaded) -> list[tuple[int, ...]]:
    return [sample["x"].shape for sample in loaded.samples]


def load(proto, source):
    network = network_from_proto(proto)
    return load_settled(network, input_specs(network), partial(load_inputs, source))[0]


def stored(folder, files: int, factor: float = 1.0) -> str:
    folder.mkdir(exist_ok=True)
    for number in range(files):
        np.savez(folder / f"{number}.npz", x=factor * X + number)
    return str(folder)


@pytest.mark.parametrize("nodes", [MEAN, IMAGE, SUMS], ids=["mean", "image", "sums"])
def test_each_file_is_one_sample_if_the_model_needs_its_rows_together(nodes, tmp_path) -> None:
    out = (1, 4, None) if nodes is IMAGE else (4,) if nodes is MEAN else (None, 4)
    loaded = load(model(nodes, out=out), stored(tmp_path, 3))
    assert shapes(loaded) == [(FRAMES, 4)] * 3
    assert "7×4 holds 1 sample of 7×4 (the model needs its rows together)" in note_text(
        loaded.notes[1]
    )


@pytest.mark.parametrize("axis", ["time", "batch"])
def test_rows_that_stand_alone_are_samples(axis, tmp_path) -> None:
    loaded = load(model(ROWS, axis, out=(None, 4)), stored(tmp_path, 2))
    assert shapes(loaded) == [(1, 4)] * 2 * FRAMES


def test_an_axis_called_batch_is_one(tmp_path) -> None:
    assert shapes(load(model(SUMS, "batch", (None, 4)), stored(tmp_path, 2)))[0] == (1, 4)


def test_one_array_whose_rows_mix_is_told_and_read_as_rows() -> None:
    loaded = load(model(SUMS, out=(None, 4)), {"x": X})
    assert shapes(loaded) == [(1, 4)] * FRAMES
    assert note_text(loaded.notes[-1]).startswith(
        "warning: the first axis is read as 7 samples, but"
    )
    front = load(model(SUMS, out=(None, 4)), {"x": X[None]})
    assert shapes(front) == [(FRAMES, 4)]
    assert front.notes[-1].kind == "layout"


def test_a_model_that_runs_neither_way_leaves_the_rows() -> None:
    assert shapes(load(model(IMAGE, out=(1, 4, None)), {"x": X[:2]})) == [(1, 4)] * 2


def test_held_out_files_are_read_alike(tmp_path) -> None:
    data = Data(inputs=stored(tmp_path / "a", 3), heldout=stored(tmp_path / "b", 2, 3.0))
    case = load_case(model(MEAN, out=(4,)), data, Criterion())
    assert [s["x"].shape for s in (*case.calibration, *case.heldout)] == [(FRAMES, 4)] * 5


def test_an_input_without_room_for_samples_makes_each_file_one(tmp_path) -> None:
    state = InputSpec("s", np.dtype(np.float32), (2,))
    specs = [InputSpec("x", np.dtype(np.float32), ("time", 4)), state]
    for number in range(2):
        np.savez(tmp_path / f"{number}.npz", x=X + number, s=np.zeros(2, np.float32))
    assert shapes(load_inputs(str(tmp_path), specs)) == [(FRAMES, 4)] * 2
