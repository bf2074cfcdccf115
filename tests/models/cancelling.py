"""Differences of nearly equal numbers."""

from tests.models.illness import Ill, illness, signals
from tests.unit.graph.sketch import Sketch, f32


@illness("Cancellation")
def cancellation() -> Ill:
    """E[x²] - E[x]², two numbers near 100 that differ by 0.01."""
    s = Sketch()
    x = s.input("x", [1, 256])
    square = s.op("Mul", x, x, name="square")
    of_squares = s.op("ReduceMean", square, name="mean_of_squares", axes=[-1])
    mean = s.op("ReduceMean", x, name="mean", axes=[-1])
    squared = s.op("Mul", mean, mean, name="square_of_mean")
    y = s.op("Sub", of_squares, squared, name="variance")
    walk = signals(1, 256, seed=7)
    return Ill(
        s.proto(y),
        {"x": f32(10 + 0.2 * walk)},
        {"square", "mean_of_squares", "mean", "square_of_mean", "variance"},
        {"cancellation"},
    )
