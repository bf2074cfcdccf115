import pytest
from hypothesis import given

from halfwise.records import (
    Comparison,
    Detail,
    Growth,
    Guard,
    Histogram,
    InnerObservation,
    NodeComparison,
    NodeName,
    Observation,
    Observations,
    TensorName,
)
from tests.unit.records.journey import any_of, assert_unchanged, drawn


@pytest.mark.parametrize(
    "kind", [Detail, Growth, Guard, Histogram, InnerObservation, Observation, Observations]
)
@drawn
def test_goes_to_json_and_back(kind, data):
    assert_unchanged(data.draw(any_of(kind)))


def test_a_guard_of_an_unknown_kind_is_refused():
    fields = {"node": "n", "tensor": None, "message": "", "fix": "", "nodes": (), "severity": 1}
    assert Guard.model_validate({**fields, "kind": "overflow"}).kind == "overflow"
    with pytest.raises(ValueError, match="kind"):
        Guard.model_validate({**fields, "kind": "hunch"})


@given(any_of(NodeComparison))
def test_nodes_survive_json(record):
    assert_unchanged(record)


@given(any_of(Comparison))
def test_comparisons_survive_json(record):
    assert_unchanged(record)


def test_what_counts_as_a_difference():
    bare = Comparison(
        a="A", b="B", samples=(), tolerance=1e-3, nodes=(), first=(), path=(), outputs={}
    )
    assert not bare.different
    off = bare.model_copy(update={"outputs": {TensorName("y"): 2e-3}})
    assert off.differs
    assert off.different
    born = bare.model_copy(update={"first": (NodeName("n"),)})
    assert born.different
    assert not born.differs
