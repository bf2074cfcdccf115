"""The bench of a folder of models, on three files that the test makes."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from bench import intake
from bench.runs import Workbench


def save(path: Path, op_type: str, *, dtype: int = TensorProto.FLOAT, name: str = "g") -> None:
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x"], ["y"])],
        name,
        [helper.make_tensor_value_info("x", dtype, ["n", 3])],
        [helper.make_tensor_value_info("y", dtype, None)],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def test_every_model_of_the_folder_is_examined(tmp_path: Path) -> None:
    folder = tmp_path / intake.FOLDER / "deeper"
    folder.mkdir(parents=True)
    save(folder / "nameless.onnx", "Relu", name="")
    save(folder / "integers.onnx", "Abs", dtype=TensorProto.INT64)
    save(folder / "unknown.onnx", "NoSuchOp")
    figures, skipped = intake.measure(Workbench(tmp_path, tmp_path))
    assert skipped is None
    assert all(figure.reached for figure in figures)
    by_name = {figure.what: figure for figure in figures}
    assert by_name["models"].note == "2 of them run by ONNX Runtime"
    assert by_name["end with 3"].measured == 1
    assert "no FP32 tensor" in str(by_name["refused because of"].measured)


def test_without_the_folder_it_is_skipped(tmp_path: Path) -> None:
    assert "no folder intake" in str(intake.measure(Workbench(tmp_path, tmp_path))[1])
