"""A tensor that calibration leaves at one value has no range; told in one sentence."""

import numpy as np
import pytest

from halfwise.api import fix
from halfwise.errors import CaseError
from halfwise.fixing.int8.unvarying import unvarying
from halfwise.records import NodeName, TensorName
from tests.unit.graph.sketch import Sketch, f32

SIZE = 8
DATA = np.cumsum(np.random.default_rng(1).uniform(0.1, 1, (12, 1, 4, SIZE)), axis=0)


def two_products():
    """One of the first input, and one of the second; both are added."""
    s = Sketch(17)
    ends: list[str] = []
    for name in ("x", "z"):
        weight = f32(np.random.default_rng(len(ends)).normal(size=(SIZE, SIZE)))
        ends.append(s.op("MatMul", s.input(name, [1, 4, SIZE]), weight, name=f"of_{name}"))
    return s, s.op("Add", *ends, name="sum")


def test_products_and_what_they_read():
    s, end = two_products()
    ends = {"x": (1.0, 2.0), "z": (0.0, 0.0)}
    ranges = {TensorName(name): both for name, both in ends.items()}
    products = [NodeName("of_x"), NodeName("of_z")]
    network = s.network(end)
    assert unvarying(network, products, ranges) == {"of_z": ("z",)}
    never_finite = {TensorName("x"): (1.0, 2.0)}
    assert unvarying(network, products, never_finite) == {"of_z": ("z",)}
    with pytest.raises(CaseError, match="a single value, or no finite one: z") as raised:
        unvarying(network, products[1:], ranges)
    assert "vary" in raised.value.hint


def test_a_run_leaves_them_out_and_says_so():
    s, end = two_products()
    inputs = {"x": f32(DATA), "z": f32(np.zeros_like(DATA))}
    run = fix(s.proto(end), inputs, to="int8", rel_max=0.05, allow_random=True).run
    assert run.plan is not None
    assert run.plan.int8 == ("of_x",)
    (note,) = [note for note in run.plan.notes if "INT8" in note]
    assert note == (
        "1 node is left out of INT8: on the calibration samples what it reads is constant or not "
        "finite, so it has no range: z."
    )
