import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from halfwise.api.ranges import parse_shapes, profiles_from
from halfwise.errors import CaseError, UsageError
from halfwise.records import Profile, ShapeRange, TensorName
from halfwise.render.recipes.trtexec import arguments
from tests.unit.graph.sketch import Sketch
from tests.unit.render.recipes.made import names, strong

X = TensorName("x")


@pytest.fixture(scope="module")
def network():
    s = Sketch()
    x = s.input("x", ["N", 3, "M"])
    s.op("Reshape", x, s.input("shape", [2], TensorProto.INT64), name="reshape")
    return s.network("reshape_out")


def test_a_profile(network):
    (made,) = profiles_from(
        network, ["x:1x3x2,shape:1x6"], ["x:2x3x4,shape:2x12"], ["x:8x3x4,shape:8x12"]
    )
    assert made == Profile(
        shapes={X: ShapeRange(min=(1, 3, 2), opt=(2, 3, 4), max=(8, 3, 4))},
        values={TensorName("shape"): ShapeRange(min=(1, 6), opt=(2, 12), max=(8, 12))},
    )


def test_opt_alone_is_the_only_shape(network):
    made = profiles_from(network, [], ["x:1x3x2", "x:2x3x2"], [])
    assert [p.shapes[X].min == p.shapes[X].max for p in made] == [True, True]
    assert profiles_from(network, [], [], []) == ()


@given(
    st.lists(names(without=",'\0"), min_size=1, max_size=3, unique=True),
    st.lists(st.integers(-9, 10**8), min_size=1, max_size=4),
)
def test_what_recipes_write_is_read(inputs, sizes):
    span = ShapeRange(min=tuple(sizes), opt=tuple(sizes), max=tuple(sizes))
    words = arguments(strong(profiles=(Profile(shapes=dict.fromkeys(inputs, span)),)))
    (text,) = (w.partition("=")[2] for w in words if w.startswith("--optShapes="))
    assert parse_shapes(text) == dict.fromkeys(inputs, tuple(sizes))


@pytest.mark.parametrize("text", ["", "x", "x:", ":1x2", "x:1,", "x:1x", "x:one", "x:1X2", "'':1"])
def test_what_cannot_be_read(text):
    with pytest.raises(UsageError, match="not a name, a colon and sizes"):
        parse_shapes(text)


@pytest.mark.parametrize(
    ("shapes", "kind", "message"),
    [
        ((["x:1x3x2"], ["x:1x3x2"], ["x:1x3x2", "x:1x3x2"]), UsageError, "incomplete"),
        ((["x:1x3x2"], [], ["x:1x3x2"]), UsageError, "incomplete"),
        ((["x:1x3x2"], ["x:1x3x2,shape:1x2"], ["x:1x3x2"]), UsageError, "not in all"),
        (([], ["y:1x3x2"], []), CaseError, "no input 'y'"),
        (([], ["x:1x3"], []), CaseError, "has 3 axes"),
        ((["shape:1"], ["shape:1x2"], ["shape:1x2"]), CaseError, "has 2 axes"),
        (([], ["x:1x4x2"], []), CaseError, "Axis 1 of input 'x' is 3"),
        ((["x:4x3x2"], ["x:1x3x2"], ["x:8x3x2"]), CaseError, "min ≤ opt ≤ max"),
    ],
)
def test_what_does_not_fit(network, shapes, kind, message):
    with pytest.raises(kind, match=message):
        profiles_from(network, *shapes)
