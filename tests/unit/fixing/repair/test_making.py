"""Recorded repairs are made again."""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.fixing.repair import making
from halfwise.fixing.repair.making import KEY, mark, marked, repaired
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import node_name
from halfwise.records import NodeName, Proof, Repair, TensorName
from tests.unit.fixing.repair.sluices import WIDE, Sluice, sluiced
from tests.unit.graph.sketch import Sketch


def repair(i: int = 0) -> Repair:
    nodes = tuple(NodeName(f"{part}_{i}") for part in ("up", "wide", "down"))
    return Repair(rule="scale", nodes=nodes, numbers={"exponent": -10})


def test_a_recorded_repair_changes_a_copy_and_leaves_names_and_outputs(monkeypatch):
    monkeypatch.setattr(making, "RULES", (Sluice(),))
    ill = sluiced(WIDE, WIDE)
    network = network_from_proto(ill.proto)
    read = Repair.from_json(repair(1).to_json())
    changed = repaired(network, [repair(0), read])
    assert list(map(node_name, changed.nodes())) == list(map(node_name, network.nodes()))
    assert (changed.path, changed.sha256) == (network.path, network.sha256)
    constants = [len(n.model.graph.initializers) for n in (network, changed)]
    assert constants == [6, 6]
    one, other = (Session(n.model).run(ill.sample(0)) for n in (network, changed))
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_without_repairs_the_network_is_itself():
    network = network_from_proto(sluiced().proto)
    assert repaired(network, ()) is network


def test_a_repair_of_another_model_or_version_is_refused(monkeypatch):
    network = network_from_proto(sluiced().proto)
    monkeypatch.setattr(making, "RULES", ())
    with pytest.raises(CaseError, match="does not know the repair 'scale'"):
        repaired(network, [repair()])
    monkeypatch.setattr(making, "RULES", (Sluice(),))
    with pytest.raises(CaseError, match="Not the model"):
        repaired(network, [repair(7)])


def model() -> ir.Model:
    s = Sketch()
    return s.network(s.op("Relu", s.input("x", [1, 4]), name="relu")).copy()


@given(
    st.lists(
        st.builds(
            Repair,
            rule=st.sampled_from(("scale", "mask")),
            nodes=st.lists(st.text(), max_size=3).map(tuple),
            exponents=st.dictionaries(st.text().map(TensorName), st.integers(-252, 252)),
            numbers=st.dictionaries(
                st.text(), st.floats(allow_nan=False, allow_infinity=False), max_size=2
            ),
            advice=st.text(),
        )
    )
)
def test_a_model_says_what_was_repaired(repairs: list[Repair]) -> None:
    written = model()
    written.metadata_props["author"] = "me"
    assert marked(written) == ()
    first = written
    mark(written, repairs[:1])
    written = first.clone()
    mark(written, repairs[1:])
    assert marked(first) == tuple(repairs[:1])
    read = network_from_proto(ir.serde.serialize_model(written))
    assert marked(read.model) == tuple(repairs)
    assert read.model.metadata_props["author"] == "me"


def test_what_was_measured_is_not_written() -> None:
    proof = Proof(samples={}, repaired=0.0, equal=True)
    mark(written := model(), [Repair(rule="mask", nodes=(), before=2.0, proof=proof)])
    assert marked(written) == (Repair(rule="mask", nodes=()),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        '{"version":2,"repairs":[]}',
        '{"version":1,"repairs":[{"rule":"\\u001b[31m","nodes":[]}]}',
        '{"version":1,"repairs":[{"rule":"scale","nodes":[],"exponents":{"x":1000000}}]}',
        '{"version":1,"repairs":[{"rule":"scale","nodes":[],"numbers":{"x":"NaN"}}]}',
        '{"version":1,"repairs":[{"rule":"scale","nodes":[],"code":"import os"}]}',
        '{"version":1,"repairs":[' + "9," * 10_000 + "9]}",
    ],
    ids=lambda text: text[:20].strip(),
)
def test_anything_else_is_one_clear_sentence(text: Any) -> None:
    (hostile := model()).metadata_props[KEY] = text
    with pytest.raises(CaseError, match=KEY) as error:
        marked(hostile)
    assert len(error.value.message) < 400
    assert error.value.message.isprintable()
