"""underflow."""

from tests.models.illness import Ill, illness, signals
from tests.unit.graph.sketch import Sketch, f32


@illness("Underflow and eps")
def logarithm() -> Ill:
    """log(x² + 1e-10): the square and the eps become zero."""
    s = Sketch()
    x = s.input("x", [1, 64])
    square = s.op("Mul", x, x, name="square")
    y = s.op("Log", s.op("Add", square, f32(1e-10), name="eps"), name="log")
    walk = signals(1, 64, seed=6)
    return Ill(
        s.proto(y),
        {"x": f32(walk * 2e-4)},
        frozenset({"square", "eps", "log"}),
        frozenset({"eps", "underflow"}),
    )
