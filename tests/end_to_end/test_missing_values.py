"""NaN is a missing value where only trees read it."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from halfwise import api
from halfwise.errors import CaseError


def model(extra: list[onnx.NodeProto]) -> onnx.ModelProto:
    trees = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["score"], name="trees", domain="ai.onnx.ml",
        n_targets=1, nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2],
        nodes_featureids=[1, 0, 0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_values=[0.5, 0.0, 0.0], nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0],
        nodes_missing_value_tracks_true=[1, 0, 0], target_treeids=[0, 0],
        target_nodeids=[1, 2], target_ids=[0, 0], target_weights=[3.0, -2.0],
    )  # fmt: skip
    scale = helper.make_node("Sigmoid", ["score"], ["y"], name="squash")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1])
    graph = helper.make_graph([trees, scale, *extra], "g", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


DATA = np.random.default_rng(3).normal(size=(16, 1, 2)).astype(np.float32)
DATA[3, 0, 1] = DATA[6, 0, 1] = np.nan


def test_a_missing_value_of_trees_is_no_damage():
    made = api.fix(model([]), {"x": DATA})
    assert made.run.verdict.passed
    assert made.run.plan is not None
    assert not made.run.plan.keep


def test_infinity_and_what_others_read_too_still_are():
    infinite = np.where(np.isnan(DATA), np.inf, DATA)
    with pytest.raises(CaseError, match="0 NaN and 1 inf"):
        api.fix(model([]), {"x": infinite})
    other = helper.make_node("Neg", ["x"], ["z"], name="other")
    with pytest.raises(CaseError, match="1 NaN and 0 inf"):
        api.fix(model([other]), {"x": DATA})
