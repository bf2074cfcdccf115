"""Where an engine departs, on chains of nodes of which one computes something else."""

import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.emulation.tensors import ModelTensors
from halfwise.fixing.engines.localise import MARKED, localise
from halfwise.graph.model import Network
from halfwise.graph.roles import roles_of
from tests.unit.graph.sketch import Sketch

LENGTH = 50
SAMPLE = {"x": np.linspace(1, 2, 8, dtype=np.float32)}
ONE = Samples(("sample",), lambda _: SAMPLE)


def chain(*, wrong: int | None = None, factor: float = 1.5, broken: int | None = None) -> Network:
    s = Sketch()
    x = s.input("x", [8] if broken is None else ["n"])
    for i in range(LENGTH):
        if i == broken:
            x = s.op("Reshape", x, [3, 3], name="broken")
        x = s.op("Add", x, factor if i == wrong else 0.0, name=f"add{i}")
    return s.network(x)


def found(engine: Network | None, *, emulation: Network | None = None, rounds: int = 2, among=None):
    network = chain()
    asked: list[int] = []

    def run_marked(names):
        asked.append(len(names))
        if engine is None:
            return None
        return next(ModelTensors(engine.model, ONE).get(names))

    wrong = (emulation or network).model
    departure = localise(
        network, roles_of(network), wrong, SAMPLE, run_marked, rounds=rounds, among=among
    )
    assert all(count <= MARKED for count in asked)
    assert len(asked) <= rounds
    return departure


@pytest.mark.parametrize("wrong", [0, 1, 7, 24, 48, 49])
def test_the_wrong_node_is_among_few(wrong):
    departure = found(chain(wrong=wrong))
    assert f"add{wrong}" in departure.nodes
    assert len(departure.nodes) <= 2
    assert departure.builds == 2
    assert departure.error > 0.1 > departure.predicted
    assert found(chain(wrong=wrong), rounds=3).nodes == (f"add{wrong}",)


def test_nodes_between_tensors_that_can_be_had():
    among = {f"add{i}_out" for i in range(9, LENGTH, 10)}
    departure = found(chain(wrong=23), among=among)
    assert departure.nodes == tuple(f"add{i}" for i in range(20, 30))
    assert departure.tensor == "add29_out"


def test_one_build_tells_less():
    departure = found(chain(wrong=20), rounds=1)
    assert "add20" in departure.nodes
    assert 1 < len(departure.nodes) <= -(-LENGTH // MARKED)


def test_what_the_emulation_has_too_is_no_departure():
    assert found(chain(wrong=3), emulation=chain(wrong=3)) is None


def test_an_engine_that_is_right():
    assert found(chain()) is None
    assert found(chain(wrong=3, factor=1e-4)) is None


def test_no_engine():
    assert found(None) is None


def test_marks_that_make_the_engine_right_leave_what_is_known():
    network, engines = chain(), [chain(wrong=20), chain()]

    def run_marked(names):
        return next(ModelTensors(engines.pop(0).model, ONE).get(names))

    departure = localise(network, roles_of(network), network.model, SAMPLE, run_marked, rounds=2)
    assert departure is not None
    assert "add20" in departure.nodes
    assert departure.builds == 2


def test_an_emulation_that_cannot_be_run_to_the_end_serves_as_far_as_it_comes():
    wrong = chain(wrong=11)
    assert "add11" in found(wrong, emulation=chain(broken=24)).nodes
    assert found(chain(wrong=30), emulation=chain(broken=24)) is None
