from hypothesis import given

from halfwise.records import Comparison, NodeComparison, NodeName, TensorName
from tests.unit.records.journey import any_of, assert_unchanged


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
