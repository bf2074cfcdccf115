"""Low bodies: the switched emulation gives what the typed one gives of the rewritten model."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from halfwise.emulation.ort import Session
from halfwise.emulation.switched import SWITCH_INPUT, emulate_switched
from halfwise.emulation.typed import emulate_typed
from halfwise.formats import BF16, FP16
from halfwise.graph.casts import low_type, rewrite
from halfwise.graph.model import Network, load_network, network_from_proto
from halfwise.graph.roles import roles_of
from halfwise.graph.weights import LowWeights
from halfwise.records import NodeName
from tests import control, models
from tests.control import GO, MATRIX, STEP


def node(op_type, inputs, outputs, name, **attributes):
    return helper.make_node(op_type, inputs.split(), outputs.split(), name=name, **attributes)


def model(nodes, constants, shape):
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy")
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


class Runs:
    """A switched model with its session."""

    def __init__(self, net: Network, fmt=FP16, *, large_from=1 << 30, **options):
        roles = roles_of(net, low_type(fmt))
        self.switched = emulate_switched(net, roles, fmt, **options)
        self.session = Session(self.switched.model, large_from=large_from)

    def __call__(self, fp32, sample):
        switch = self.switched.switch(frozenset(NodeName(n) for n in fp32))
        return self.session.run({**sample, SWITCH_INPUT: switch})["y"]


def test_long_sums_in_bodies_agree_too():
    # One operand is the state of the loop, the other is read from outside, computed or constant.
    rng = np.random.default_rng(0)
    nodes = [
        node("Identity", "go", "on", "on"),
        node("MatMul", "state w", "a", "by_constant"),
        node("MatMul", "a h", "next", "by_computed"),
    ]
    formals = [("step", STEP), ("go", GO), ("state", MATRIX)]
    body = control.graph("body", nodes, formals, [("on", GO), ("next", MATRIX)])
    loop = helper.make_node("Loop", ["trips", "", "x"], ["y"], "loop", body=body)
    weights = {n: rng.standard_normal((100, 100)).astype(np.float32) / 10 for n in ("w", "v")}
    constants = {**weights, "trips": np.array(3)}
    net = network_from_proto(model([node("Neg", "v", "h", "neg"), loop], constants, (3, 100)))
    sample = {"x": rng.standard_normal((3, 100)).astype(np.float32)}
    run, wide = Runs(net, accumulate="fp16"), Runs(net)
    for kept in ("", "neg", "loop", "neg loop"):
        fp32 = [NodeName(name) for name in kept.split()]
        rewritten = rewrite(net, roles_of(net), frozenset(fp32), FP16)
        typed = Session(emulate_typed(rewritten.model, accumulate="fp16")).run(sample)
        np.testing.assert_allclose(run(fp32, sample), np.float32(typed["y"]), rtol=1e-6, atol=0)
        # Both products are sums in FP16 where the loop is low.
        assert (run(fp32, sample) != wide(fp32, sample)).any() == ("loop" not in fp32)
    inner = [n for g in run.switched.model.graph.subgraphs() for n in g if n.op_type == "Loop"]
    assert len(inner) == 2 + 2


def with_weights():
    """A Loop whose body has a weight of its own and reads one from outside, as the graph does.

    An If inside it, and the main graph, read the outer one too.
    """
    rng = np.random.default_rng(0)
    own, outer = (rng.standard_normal((64, 64)).astype(np.float32) / 8 for _ in range(2))
    inner = {
        branch: control.graph(
            branch, [node(op, "b outer", f"{branch}_y", branch)], [], [(f"{branch}_y", MATRIX)]
        )
        for branch, op in (("then_branch", "MatMul"), ("else_branch", "Add"))
    }
    nodes = [
        node("Identity", "go", "on", "on"),
        node("MatMul", "state own", "a", "by_own"),
        node("MatMul", "a outer", "b", "by_outer"),
        helper.make_node("If", ["go"], ["next"], "choose", **inner),
    ]
    formals = [("step", STEP), ("go", GO), ("state", MATRIX)]
    given = [("on", GO), ("next", MATRIX)]
    body = control.graph("body", nodes, formals, given, {"own": own})
    loop = helper.make_node("Loop", ["trips", "", "h"], ["y"], "loop", body=body)
    first = node("MatMul", "x outer", "h", "first")
    proto = model([first, loop], {"outer": outer, "trips": np.array(2)}, (64, 64))
    return models.Ill(proto, {"x": rng.standard_normal((1, 64, 64)).astype(np.float32)})


@pytest.mark.parametrize(
    ("fmt", "accumulate"),
    [(FP16, "fp32"), (FP16, "fp16"), (BF16, "fp32")],
    ids=["fp16", "fp16-sums", "bf16"],
)
def test_weights_on_disk_stay_low_in_bodies_and_give_the_same_to_the_bit(tmp_path, fmt, accumulate):
    ill = with_weights()
    net = load_network(models.saved_beside(ill, tmp_path))
    roles, weights = roles_of(net, low_type(fmt)), LowWeights(net.model, fmt, large_from=0)
    disk = Runs(net, fmt, accumulate=accumulate, weights=weights, large_from=0)
    memory = Runs(net, fmt, accumulate=accumulate)
    for kept in ((), ("first",), ("loop",), ("first", "loop")):
        found = disk(kept, ill.sample(0))
        assert found.tobytes() == memory(kept, ill.sample(0)).tobytes()
        mixed = rewrite(net, roles, frozenset(map(NodeName, kept)), fmt, weights=weights).model
        typed = emulate_typed(mixed, accumulate=accumulate, large_from=0)
        result = Session(typed, large_from=0).run(ill.sample(0))["y"]
        np.testing.assert_allclose(found, np.float32(result), rtol=1e-6, atol=0)


def test_no_wide_copy_of_a_low_weight_is_held(tmp_path):
    net = load_network(models.saved_beside(with_weights(), tmp_path))
    weights = LowWeights(net.model, FP16, large_from=0)
    switched = emulate_switched(net, roles_of(net), FP16, weights=weights).model
    mixed = rewrite(net, roles_of(net), frozenset(), FP16, weights=weights).model
    for made, full in ((switched, 2), (emulate_typed(mixed, large_from=0), 0)):
        stored = [
            v.const_value
            for graph in (made.graph, *made.graph.subgraphs())
            for v in graph.initializers.values()
            if v.const_value is not None and v.const_value.size > 1000
        ]
        kinds = [t.dtype for t in stored]
        # Whole ones are the user's; each weight is there once in FP16.
        assert kinds.count(ir.DataType.FLOAT) == full
        assert kinds.count(ir.DataType.FLOAT16) == 2
