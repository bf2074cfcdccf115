"""Recorded repairs are made again."""

import numpy as np
import pytest

from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.fixing.repair import rules
from halfwise.fixing.repair.making import repaired
from halfwise.graph.model import network_from_proto, node_name
from halfwise.records import NodeName, Repair
from tests.unit.fixing.repair.sluices import WIDE, Sluice, sluiced


def repair(i: int = 0) -> Repair:
    nodes = tuple(NodeName(f"{part}_{i}") for part in ("up", "wide", "down"))
    return Repair(rule="scale", nodes=nodes, numbers={"exponent": -10})


def test_a_recorded_repair_changes_a_copy_and_leaves_names_and_outputs(monkeypatch):
    monkeypatch.setattr(rules, "RULES", (Sluice(),))
    ill = sluiced(WIDE, WIDE)
    network = network_from_proto(ill.proto)
    read = Repair.model_validate_json(repair(1).model_dump_json())
    made = repaired(network, [repair(0), read])
    assert list(map(node_name, made.nodes())) == list(map(node_name, network.nodes()))
    assert (made.path, made.sha256) == (network.path, network.sha256)
    constants = [len(n.model.graph.initializers) for n in (network, made)]
    assert constants == [6, 6]
    one, other = (Session(n.model).run(ill.sample(0)) for n in (network, made))
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_without_repairs_the_network_is_itself():
    network = network_from_proto(sluiced().proto)
    assert repaired(network, ()) is network


def test_a_repair_of_another_model_or_version_is_refused(monkeypatch):
    network = network_from_proto(sluiced().proto)
    monkeypatch.setattr(rules, "RULES", ())
    with pytest.raises(CaseError, match="does not know the repair 'scale'"):
        repaired(network, [repair()])
    monkeypatch.setattr(rules, "RULES", (Sluice(),))
    with pytest.raises(CaseError, match="Not the model"):
        repaired(network, [repair(7)])
