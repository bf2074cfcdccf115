import numpy as np
import onnx_ir as ir
import pytest

from halfwise.emulation.elements import Elements
from halfwise.emulation.ort import Session
from halfwise.emulation.switched import emulate_switched
from halfwise.emulation.tf32 import emulate_tf32
from halfwise.formats import FP16
from halfwise.graph.roles import roles_of
from tests.unit.graph.sketch import Sketch, f32


@pytest.mark.parametrize("count", [1, 127, 128, 129, 300])
def test_each_element_is_handed_out_once_in_order(count):
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 17})
    elements = Elements(graph, "which", count)
    graph.inputs.append(elements.input)
    for i in range(count):
        graph.extend(taken := elements.take(f"is_{i}"))
        graph.outputs.append(taken[-1].outputs[0])
    which = np.random.default_rng(count).random(count) < 0.5
    found = Session(ir.Model(graph, ir_version=8)).run({"which": which})
    assert [bool(found[f"is_{i}"]) for i in range(count)] == which.tolist()


@pytest.mark.parametrize(
    "emulate",
    [
        lambda network: emulate_switched(network, roles_of(network), FP16).model,
        lambda network: emulate_tf32(network, switched=True),
    ],
)
def test_few_nodes_of_an_emulation_could_run_at_once(emulate):
    """ONNX Runtime walks through the list of those whenever it adds to it."""
    s = Sketch()
    value = s.input("x", [2, 2])
    for _ in range(300):
        value = s.op("MatMul", value, f32(np.eye(2)))
    model = emulate(s.network(value))
    computed = [n for n in model.graph if n.op_type != "Constant"]
    made = {v for n in computed for v in n.outputs}
    ready = [n for n in computed if not made & set(n.inputs)]
    assert 3 <= len(ready) <= 6
