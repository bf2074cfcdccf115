from halfwise.page.graph import Structure
from halfwise.records import NodeName
from tests.unit.page.graphs import block, sketched

GIVEN = {"a/w1": "8×8", "a/w2": "8×8", "b/w1": "8×8", "b/w2": "8×8"}


def test_parts_are_alike_by_operators_wiring_and_shapes() -> None:
    lines = [("x0", "Conv", ["x"]), *block("a/", "x0"), *block("b/", "a/sum")]
    first, second = range(1, 5), range(5, 9)
    alike = Structure(sketched(lines, constants=GIVEN))
    assert alike.kind(first) == alike.kind(second) != alike.kind([0])
    other = Structure(sketched(lines, constants=GIVEN | {"b/w2": "8×9"}))
    assert other.kind(first) != other.kind(second)
    # The residual comes from elsewhere than what the product reads.
    lines[-1] = ("b/sum", "Add", ["x0", "b/down"])
    crossed = Structure(sketched(lines, constants=GIVEN))
    assert crossed.kind(first) != crossed.kind(second)


def test_passing_tensors_are_counted() -> None:
    lines = [("a", "Relu", ["x"]), ("b", "Relu", ["a"]), ("c", "Add", ["a", "b"])]
    structure = Structure(sketched([*lines, ("d", "Relu", ["c"])]))
    assert structure.passing[:4] == [0, 1, 2, 1]


def test_casts_of_halfwise_are_looked_through() -> None:
    lines = [("a", "Relu", ["x"]), ("cast", "Cast", ["a"]), ("b", "Relu", ["cast"])]
    with_cast = Structure(sketched(lines, added=[1]))
    assert with_cast.is_passed([1])
    assert not with_cast.is_passed([1, 2])
    assert with_cast.kind([0, 1, 2]) == with_cast.kind([0, 2])
    assert not Structure(sketched(lines)).is_passed([1])


def test_a_cast_that_reads_itself_or_nothing_is_no_endless_way() -> None:
    graph = sketched([*block("a", "x"), ("cast", "Cast", ["a/mm"]), ("end", "Relu", ["cast"])])
    cast = graph.nodes.index(NodeName("cast"))
    for read in ((), graph.gives[cast], graph.gives[cast + 1]):
        reads = tuple(read if i == cast else r for i, r in enumerate(graph.reads))
        damaged = graph.model_copy(update={"added": (cast,), "reads": reads})
        assert Structure(damaged).kind([cast, cast + 1]) == 0
