from halfwise.fixing.attribute import Attribution, Infinity, attribute_inside
from halfwise.formats import FP16
from halfwise.graph.roles import roles_of
from halfwise.observing import observe_network
from halfwise.records import Guard, NodeName, TensorName
from halfwise.reporting.remarks import message
from tests import models
from tests.models import Ill
from tests.unit.casing import prepare
from tests.unit.graph.sketch import Sketch

SQUARE, ROOT = TensorName("square_out"), TensorName("root_out")


def normed() -> Ill:
    """x / √x², the squares beyond the range."""
    s = Sketch()
    x = s.input("x", [1, 16])
    moved = s.op("Reshape", s.op("Mul", x, x, name="square"), [16, 1], name="moved")
    root = s.op("Reshape", s.op("Sqrt", moved, name="root"), [1, 16], name="back")
    y = s.op("Div", x, s.op("Sin", root, name="sine"), name="divide")
    return Ill(s.proto(y), {"x": models.signals(1, 16, seed=3, peak=1000)})


def raised(inside: dict[TensorName, Infinity], guards=(), held=()) -> list[Guard]:
    prepared = prepare(normed())
    observations = observe_network(prepared.network, prepared.samples, FP16, roles=prepared.roles)[
        0
    ]
    evidence = Attribution(prepared.network, roles_of(prepared.network), observations, FP16)
    vars(evidence)["guards"] = tuple(guards)
    return list(attribute_inside(evidence, inside, [NodeName(n) for n in held]))


def infinity(*harmful: str) -> Infinity:
    return Infinity(3, tuple(map(NodeName, harmful)), (0,))


def test_producer_and_harmful_readers_of_what_is_beyond_the_range() -> None:
    moved = TensorName("moved_out")
    inside = {SQUARE: infinity("root"), moved: infinity("root"), ROOT: infinity("sine")}
    (guard,) = raised(inside)
    assert (guard.kind, guard.node, guard.tensor) == ("infinite", "square", "square_out")
    assert guard.nodes == ("square", "root")
    assert message(guard) == (
        "square_out reaches 1e6, beyond FP16's 65504: 3 values would be infinite inside, and "
        "root (Sqrt) reads that, although the outputs pass"
    )


def test_what_only_inherits_is_looked_at_where_nothing_is_beyond_the_range() -> None:
    (guard,) = raised({ROOT: infinity("sine")})
    assert guard.nodes == ("square", "root")
    assert "not finite in 3 values" in message(guard)


def test_guards_on_the_producer_say_more_than_its_neighbours() -> None:
    named = Guard(
        kind="eps",
        node=NodeName("sine"),
        tensor=None,
        message="",
        fix="",
        nodes=(NodeName("root"), NodeName("sine")),
        severity=1,
    )
    (guard,) = raised({ROOT: infinity("sine")}, [named])
    assert guard.nodes == ("root", "sine")
    (wider,) = raised({ROOT: infinity("sine")}, [named], ["root", "sine"])
    assert wider.nodes == ("square", "root")
    assert raised({ROOT: infinity("sine")}, [named], ["root", "sine", "square"]) == []
