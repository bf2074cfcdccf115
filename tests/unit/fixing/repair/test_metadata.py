"""What was repaired is written into a model, and read again from any file."""

from typing import Any

import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfwise.errors import CaseError
from halfwise.fixing.repair.metadata import KEY, mark, marked
from halfwise.graph.model import network_from_proto
from halfwise.records import Proof, Repair, TensorName
from tests.unit.graph.sketch import Sketch


def model() -> ir.Model:
    s = Sketch()
    return s.network(s.op("Relu", s.input("x", [1, 4]), name="relu")).copy()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.builds(
            Repair,
            rule=st.sampled_from(("scale", "fold")),
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
    proof = Proof(samples={}, original=None, repaired=0.0, equal=True)
    mark(written := model(), [Repair(rule="fold", nodes=(), before=2.0, proof=proof)])
    assert marked(written) == (Repair(rule="fold", nodes=()),)


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
        " " * (1 << 24) + " ",
    ],
    ids=lambda text: text[:20].strip(),
)
def test_anything_else_is_one_clear_sentence(text: Any) -> None:
    (hostile := model()).metadata_props[KEY] = text
    with pytest.raises(CaseError, match=KEY) as error:
        marked(hostile)
    assert len(error.value.message) < 400
    assert error.value.message.isprintable()
