"""Declared shapes: kept, forgotten, and compared with inferred ones."""

from halfwise.graph.declared import contradicted, declared_shapes, forget_shapes, forget_sizes
from tests.unit.graph.test_sizes import relus


def test_sizes_of_computed_values_are_forgotten_and_the_rank_stays():
    graph = relus((2, 3)).graph
    forget_sizes([graph])
    for value in (*graph.value_info, *graph.output):
        assert [d.HasField("dim_value") for d in value.type.tensor_type.shape.dim] == [False] * 2
    assert [d.dim_value for d in graph.input[0].type.tensor_type.shape.dim] == [2, 3]


def test_shapes_of_computed_values_are_forgotten():
    graph = relus((2, "n", None)).graph
    assert declared_shapes([graph]) == dict.fromkeys("ty", (2, "n", None))
    forget_shapes([graph])
    assert declared_shapes([graph]) == {}
    assert graph.input[0].type.tensor_type.HasField("shape")


def test_another_rank_or_size_contradicts_and_a_name_does_not():
    declared = {"rank": (2,), "size": (2, 3), "named": ("n", 3), "same": (None, 3), "gone": (1,)}
    inferred = {"rank": (2, 1), "size": (2, 4), "named": (2, 3), "same": (2, 3)}
    assert contradicted(declared, inferred) == ("rank", "size")
