"""Where a graph is cut into stretches."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from halfwise.case import Case, Runtime, Samples, Settings
from halfwise.emulation.late_start import FEWEST, References, cuts_for, cuts_of, stretches
from halfwise.emulation.ort import Session
from halfwise.emulation.switched import SWITCH_INPUT, Layout, emulate_switched
from halfwise.formats import FP16
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import roles_of
from halfwise.records import Criterion, NodeName, TensorName
from tests.graphs import Drawn, graphs, plans
from tests.unit.emulation.test_forms import chain
from tests.unit.emulation.test_switched import network, node

NODES = [NodeName(f"n{i}") for i in range(12)]


class Cut:
    """A network switched without cuts, and with as many as it has places."""

    def __init__(self, net, *, size=1, most=1 << 20, **options):
        roles = roles_of(net)
        layouts = Layout(size=size), Layout(size=size, cuts=6)
        self.plain, self.cut = (
            emulate_switched(net, roles, FP16, layout=layout, **options) for layout in layouts
        )
        self.references = References(net.model, self.cut.switches.starts, most=most)
        self.sessions = Session(self.plain.model), Session(self.cut.model)

    def begun(self, sample, fp32) -> list[int]:
        """Run twice; return where each run began (0 at the network's inputs), if bits are equal."""
        switch = self.plain.switches.switch(frozenset(fp32))
        expected = self.sessions[0].run({**sample, SWITCH_INPUT: switch})
        low_from, begun = self.cut.switches.low_from(switch), []
        for _ in range(2):
            cuts = self.references.inputs(sample, low_from)
            at = [s.nodes for s in self.cut.switches.starts if cuts[s.skips]]
            begun.append(at[-1] if at else 0)
            found = self.sessions[1].run({**sample, **cuts, SWITCH_INPUT: switch})
            for name, array in expected.items():
                assert array.tobytes() == found[name].tobytes(), name
        return begun


# Without shrinking, which takes minutes.
@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(graphs(), st.data())
def test_a_run_that_begins_late_gives_the_same_bits(drawn: Drawn, data: st.DataObject):
    net = network_from_proto(drawn.proto)
    size, most = (data.draw(st.sampled_from(each)) for each in ([1, 3], [1 << 20, 200, 50]))
    both = Cut(net, size=size, most=most)
    for _ in range(3):
        both.begun(drawn.sample, data.draw(plans(net)))


def sample_of(value: float):
    return {"x": np.full((2, 4), value, np.float32)}


def test_a_run_begins_at_the_last_cut_before_the_first_low_node_once_a_sample_comes_again():
    both = Cut(chain(12))
    places = [start.nodes for start in both.cut.switches.starts]
    assert places == sorted(set(places))
    assert both.begun(sample_of(1), NODES[: places[2]]) == [0, places[2]]
    assert both.begun(sample_of(1), NODES[: places[2] - 1]) == [places[1]] * 2
    assert both.begun(sample_of(1), NODES[1:]) == [0, 0]
    assert both.begun(sample_of(1), NODES) == [places[-1]] * 2
    assert both.begun(sample_of(2), NODES) == [0, places[-1]]


def test_memory_is_bounded_and_goes_to_samples_that_come_twice_as_often():
    one = sum(4 * 8 for _ in Cut(chain(12)).cut.switches.starts)
    both = Cut(chain(12), most=one)
    first, second = sample_of(1), sample_of(2)
    assert both.begun(first, NODES)[1]
    assert both.begun(second, NODES) == [0, 0]
    assert both.begun(second, NODES) == [0, 0]
    assert both.begun(second, NODES)[0]
    assert both.begun(first, NODES) == [0, 0]


def test_memory_is_bounded_if_a_sample_is_larger_than_the_last_one():
    nodes = [node("Relu", a, b, name) for a, b, name in zip("xabc", "abcy", NODES, strict=False)]
    net = network(nodes, shape=("n", 4))
    row = 16 * len(Cut(net).cut.switches.starts)
    both = Cut(net, most=9 * row)
    small, large = ({"x": np.ones((rows, 4), np.float32)} for rows in (1, 9))
    assert both.begun(small, NODES)[1]
    assert both.begun(large, NODES)[1]
    assert both.begun(small, NODES) == [0, 0]


def test_cuts_whose_tensors_are_too_large_are_not_used():
    size = 4 * 8
    places = [start.nodes for start in Cut(chain(12)).cut.switches.starts]
    assert Cut(chain(12), most=2 * size).begun(sample_of(1), NODES) == [0, places[1]]
    assert Cut(chain(12), most=size - 1).begun(sample_of(1), NODES) == [0, 0]


def test_of_cuts_with_as_many_switches_before_them_each_may_be_too_large():
    body = """g (float[1,4] x) => (float[1,400] y) <int64 one = {1}, int64[2] reps = {1, 100}>
        { [n0] a = Neg (x) [n1] b = Neg (a) [n2] c = Cast <to = 7> (b) [i0] d = Add (c, one)
          [i1] e = Add (d, one) [i2] f = Tile (e, reps) [i3] g = Add (f, one) [i4] h = Add (g, one)
          [n3] i = Cast <to = 1> (h) [n4] j = Neg (i) [n5] y = Neg (j) }"""
    header = '<ir_version: 8, opset_import: ["" : 17]>'
    net = network_from_proto(onnx.parser.parse_model(header + body))
    places = [start.nodes for start in Cut(net).cut.switches.starts]
    assert len(set(places)) < len(places)
    sample = {"x": np.arange(4, dtype=np.float32).reshape(1, 4)}
    for most in (1 << 20, 3000, 100):
        assert Cut(net, most=most).begun(sample, NODES)[1]


@pytest.mark.parametrize("low_io", [frozenset(), frozenset([TensorName("x")])])
def test_low_inputs_leave_no_cuts_as_fp32_is_not_the_reference_then(low_io):
    net = chain(12)
    made = emulate_switched(net, roles_of(net), FP16, layout=Layout(size=1, cuts=3), low_io=low_io)
    assert bool(made.switches.starts) is not bool(low_io)


def test_cuts_are_closer_at_the_beginning():
    places = [0, *cuts_of(100, 5), 100]
    assert list(np.diff(places)) == sorted(np.diff(places))


def test_few_nodes_and_cuda_have_no_cuts():
    def cuts(nodes: int, device: str = "cpu") -> int:
        none = Samples((), sample_of)
        case = Case(chain(nodes), none, none, Criterion(), None, (), "")
        return cuts_for(case, Settings(runtime=Runtime(device=device)))

    assert cuts(FEWEST)
    assert not cuts(FEWEST - 1)
    assert not cuts(FEWEST, "cuda")


def cut(nodes, size, apart=(), outputs=("y",)):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    graph = helper.make_graph(nodes, "g", [x], given)
    imports = [helper.make_opsetid("", 17)]
    net = network_from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))
    order: list[ir.Node] = list(net.graph)
    parts = stretches(order, roles_of(net), size, frozenset(apart))
    assert [n for part in parts for n in part] == order
    return [[n.name for n in part] for part in parts]


def node_stretches(op_type, inputs, outputs, name, **attributes):
    return helper.make_node(op_type, inputs.split(), outputs.split(), name=name, **attributes)


def chain_stretches(count):
    names = ["x", *(f"v{i}" for i in range(1, count)), "y"]
    return [node_stretches("Relu", names[i], names[i + 1], f"n{i}") for i in range(count)]


@pytest.mark.parametrize("count", [1, 2, 6, 7, 30])
def test_stretches_have_about_the_size(count):
    parts = cut(chain_stretches(count), 4)
    assert all(2 <= len(part) <= 6 for part in parts[:-1])


def test_of_size_one_each_node_is_alone():
    assert cut(chain_stretches(3), 1) == [["n0"], ["n1"], ["n2"]]


def test_they_are_cut_where_least_crosses():
    # Two branches, joined by the fourth node.
    nodes = [
        node_stretches("Relu", "x", "a", "a"),
        node_stretches("Neg", "a", "b", "b"),
        node_stretches("Abs", "a", "c", "c"),
        node_stretches("Add", "b c", "d", "join"),
        *(node_stretches("Relu", f"{'d' if i == 0 else i}", f"{i + 1}", f"r{i}") for i in range(4)),
        node_stretches("Relu", "4", "y", "last"),
    ]
    assert cut(nodes, 4)[0] == ["a", "b", "c", "join", "r0", "r1"]
    assert cut(nodes, 2)[0] == ["a"]


def test_what_no_if_may_hold_stands_alone():
    nodes = [
        node_stretches("Relu", "x", "a", "a"),
        node_stretches("Neg", "a", "b", "b"),
        node_stretches("EyeLike", "b", "e", "pinned"),
        node_stretches("Add", "b e", "c", "c"),
        node_stretches("Shape", "c", "s", "shape"),
        node_stretches("Reshape", "c s", "y", "y"),
    ]
    assert cut(nodes, 24) == [["a", "b"], ["pinned"], ["c", "shape", "y"]]


def test_one_node_that_may_be_low_needs_no_company():
    nodes = [node_stretches("Shape", "x", "s", "shape"), node_stretches("Reshape", "x s", "y", "y")]
    assert cut(nodes, 24) == [["shape"], ["y"]]


def test_what_is_likely_of_another_precision_has_a_stretch_of_its_own():
    nodes = chain_stretches(6)
    nodes.insert(3, node_stretches("Shape", "v3", "s", "shape"))
    nodes[4] = node_stretches("Reshape", "v3 s", "v4", "n3")
    found = cut(nodes, 24, apart=["n2", "n3"])
    assert found == [["n0", "n1"], ["n2", "shape", "n3"], ["n4", "n5"]]
    assert cut(chain_stretches(3), 24, apart=["n1"]) == [["n0"], ["n1"], ["n2"]]
