"""What assignments with INT8 cost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.emulation.runner import seen_shapes
from halfwise.fixing.cost import FLOPS_PER_BYTE_INT8, CostModel
from halfwise.formats import FP16
from halfwise.graph.casts import low_type
from halfwise.graph.roles import roles_of
from tests.unit.fixing.test_cost import energy
from tests.unit.graph.sketch import Sketch, f32

NONE: frozenset[str] = frozenset()
ROWS, WIDTH = 4, 16


def model_of(network, rows=ROWS, width=WIDTH, **more):
    shapes = seen_shapes(network, {"x": np.ones((rows, width), np.float32)})
    return CostModel(network, roles_of(network, low_type(FP16)), shapes, **more)


def sketched(steps, *, quantised=frozenset(), rows=ROWS, width=WIDTH):
    """A network of products, Relus and sums of what came before, some products with Q and DQ."""
    s = Sketch()
    made = [s.input("x", [rows, width])]

    def pair(value, name):
        parts = (value, f32(0.1), np.array(0, np.int8))
        whole = s.op("QuantizeLinear", *parts, name=f"{name}_q")
        return s.op("DequantizeLinear", whole, *parts[1:], name=f"{name}_dq")

    for i, (op, first, second) in enumerate(steps):
        a, b = (made[k % len(made)] for k in (first, second))
        if op == "MatMul":
            name, b = f"product_{i}", s.constant(f32(np.ones((width, width))), f"weight_{i}")
            if name in quantised:
                a, b = pair(a, f"{name}_a"), pair(b, f"{name}_b")
            made.append(s.op(op, a, b, name=name))
        else:
            made.append(s.op(op, *((a, b) if op == "Add" else (a,)), name=f"step_{i}"))
    read = {name for node in s.nodes for name in node.input}
    return s.network(*(name for name in made[1:] if name not in read))


STEPS = st.lists(
    st.tuples(st.sampled_from(("MatMul", "Relu", "Add")), st.integers(0, 9), st.integers(0, 9)),
    min_size=1,
    max_size=9,
)


@given(STEPS, st.data())
def test_quantisations_are_seen_through_and_terms_add_up(steps, data):
    plain = sketched(steps)
    names = sorted(str(n.name) for n in plain.nodes() if n.op_type == "MatMul")
    quantised = frozenset(names)
    some = data.draw(st.frozensets(st.sampled_from(names))) if names else NONE
    kept = data.draw(st.frozensets(st.sampled_from([str(n.name) for n in plain.nodes()])))
    ours, theirs = model_of(plain), model_of(sketched(steps, quantised=some))
    assert ours.cost(kept, int8=some) == theirs.cost(kept)
    assert ours.macs(quantised) == theirs.macs(quantised) == bool(names)
    # What gives an output could give it in FP32, which the terms leave out.
    some -= {str(v.producer().name) for v in plain.graph.outputs}
    terms = ours.int8_terms(quantised)
    told = energy(terms, quantised - some) - energy(terms, quantised)
    assert told == pytest.approx(ours.cost(NONE, int8=some) - ours.cost(NONE))


def test_int8_reads_bytes_and_computes_twice_as_fast():
    chain = [("MatMul", i, 0) for i in range(3)]
    whole = frozenset(f"product_{i}" for i in range(3))
    weights, values = 3 * WIDTH**2, ROWS * WIDTH
    # The input is read in FP32 and quantised on its own; the last product gives FP32.
    moved = weights + (4 + 1) * values + 5 * values + 4 * values
    assert model_of(sketched(chain)).cost(NONE, int8=whole) == moved
    large = model_of(sketched(chain[:1], rows=2048, width=2048), 2048, 2048)
    flops = 2 * 2048**3 / FLOPS_PER_BYTE_INT8
    assert large.cost(NONE, int8=whole) == pytest.approx(flops + 5 * 2048**2)


def test_one_left_out_reads_what_is_stored_beside_the_integers():
    steps = [("Relu", 0, 0), ("MatMul", 1, 0), ("MatMul", 1, 0), ("Add", 2, 3)]
    model, both = model_of(sketched(steps)), frozenset(("product_1", "product_2"))
    apart = model.cost(NONE, int8=both - {"product_2"}) - model.cost(NONE, int8=both)
    # Its weight and what it reads have another byte, and what both read is stored in FP16 too.
    assert apart == WIDTH**2 + (1 + 2) * ROWS * WIDTH
    assert model.macs(frozenset(("product_1",))) == 0.5
