from dataclasses import dataclass, field

import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.emulation.tensors import ModelTensors
from halfwise.tools.compare import ModelSide, Walk, compared, search
from halfwise.tools.compare.search import look
from tests.unit.graph.sketch import Sketch, f32

NODES = 60
DATA = f32(np.random.default_rng(3).normal(size=(2, 8, 8)))
SAMPLES = Samples(("s0", "s1"), lambda i: {"x": DATA[i]})


def residual(broken=None):
    """A residual stream of branches, so that what lies before a node is more than one tensor."""
    sketch, rng = Sketch(), np.random.default_rng(1)
    x = sketch.input("x", [8, 8])
    for i in range(NODES // 3):
        weight = f32(rng.normal(size=(8, 8)) / 8)
        names = [f"m{i}", f"t{i}", f"s{i}"]
        factors = [1.5 if name == broken else 1.0 for name in names]
        m = sketch.op("MatMul", x, f32(weight * factors[0]), name=names[0])
        t = sketch.op("Tanh" if factors[1] == 1 else "Sin", m, name=names[1])
        x = sketch.op("Add" if factors[2] == 1 else "Sub", x, t, name=names[2])
    return sketch.network(x)


@dataclass
class Dear(ModelSide):
    """A model whose tensors cost a build for each question, as those of an engine do."""

    few: bool = True
    asked: list[int] = field(default_factory=list)

    def get(self, names):
        self.asked.append(len(names))
        return super().get(names)


def searched(broken, rounds):
    whole, side = residual(), Dear(ModelTensors(residual(broken).model, SAMPLES), "dear")
    right = ModelSide(ModelTensors(whole.model, SAMPLES), "right", exact=True)
    walk = Walk(whole, SAMPLES, right, side)
    look(walk, rounds)
    return compared(walk), side.asked


@pytest.mark.parametrize("broken", ["m0", "t7", "s12", "m19", "s19"])
def test_few_questions_find_the_node(broken):
    found, asked = searched(broken, 6)
    assert found.first == (broken,)
    assert len(asked) <= 6
    assert max(asked) <= search.MARKED + 3


def test_too_few_questions_leave_more_than_one():
    found, asked = searched("t7", 1)
    assert "t7" in found.first
    assert 1 < len(found.first) < NODES
    assert len(asked) == 1
    assert any(node.status == "skipped" for node in found.nodes)


def test_nothing_wrong_is_one_question():
    found, asked = searched(None, 6)
    assert found.first == ()
    assert len(asked) == 1


def test_enough_questions_measure_all():
    found, asked = searched("t7", NODES // search.MARKED)
    assert found.first == ("t7",)
    assert all(node.error is not None for node in found.nodes)
    assert max(asked) <= search.MARKED
