"""Squares, spectra and eps constants that become zero where something divides or takes a log."""

import numpy as np

from tests.models.illness import Ill, illness, signals
from tests.unit.graph.sketch import Sketch, f32

FAMILY = "Underflow and eps"
EPS = ("pytorch/pytorch#32137", "pytorch/pytorch#41527", "microsoft/onnxconverter-common#153")


@illness(FAMILY, *EPS)
def logarithm() -> Ill:
    """log(x² + 1e-10): the square and the eps become zero."""
    s = Sketch()
    x = s.input("x", [1, 64])
    square = s.op("Mul", x, x, name="square")
    y = s.op("Log", s.op("Add", square, f32(1e-10), name="eps"), name="log")
    inputs = {"x": f32(signals(1, 64, seed=6) * 2e-4)}
    return Ill(s.proto(y), inputs, {"square", "eps", "log"}, {"eps", "underflow"})


@illness(FAMILY, *EPS)
def constant_rows() -> Ill:
    """(x - mean) / (deviation + 1e-12) in rows without any spread: 0/0, were the eps zero."""
    s = Sketch()
    x = s.input("x", [1, 4, 16])
    centred = s.op("Sub", x, s.op("ReduceMean", x, name="mean", axes=[-1]), name="centre")
    square = s.op("Mul", centred, centred, name="square")
    sigma = s.op("Sqrt", s.op("ReduceMean", square, name="variance", axes=[-1]), name="root")
    y = s.op("Div", centred, s.op("Add", sigma, f32(1e-12), name="eps"), name="divide")
    inputs = {"x": signals(1, 4, 16, seed=80, peak=8)}
    inputs["x"][:, :, 2] = 1
    return Ill(s.proto(y), inputs)


@illness(FAMILY, *EPS)
def zeros() -> Ill:
    """x / √(x² + 1e-12) at zero: 0/0, were the eps zero."""
    s = Sketch()
    x = s.input("x", [1, 64])
    square = s.op("Mul", x, x, name="square")
    root = s.op("Sqrt", s.op("Add", square, f32(1e-12), name="eps"), name="root")
    y = s.op("Div", x, root, name="divide")
    inputs = {"x": f32(np.round(signals(1, 64, seed=81, peak=3)))}
    return Ill(s.proto(y), inputs)


@illness(FAMILY)
def power_spectrum() -> Ill:
    """log(re² + im² + 1e-10) of a quiet signal."""
    s = Sketch()
    real, imaginary = s.input("real", [1, 64]), s.input("imaginary", [1, 64])
    a = s.op("Mul", real, real, name="real_square")
    b = s.op("Mul", imaginary, imaginary, name="imaginary_square")
    power = s.op("Add", s.op("Add", a, b, name="power"), f32(1e-10), name="eps")
    y = s.op("Log", power, name="log")
    inputs = {
        "real": signals(1, 64, seed=82, peak=2e-4),
        "imaginary": signals(1, 64, seed=83, peak=2e-4),
    }
    kept = {"real_square", "imaginary_square", "power", "eps", "log"}
    return Ill(s.proto(y), inputs, kept, {"eps", "underflow"})


@illness(FAMILY)
def magnitudes() -> Ill:
    """√(re² + im²) of a quiet signal: the squares vanish, their root would not."""
    s = Sketch()
    real, imaginary = s.input("real", [1, 64]), s.input("imaginary", [1, 64])
    a = s.op("Pow", real, f32(2.0), name="real_square")
    b = s.op("Pow", imaginary, f32(2.0), name="imaginary_square")
    root = s.op("Sqrt", s.op("Add", a, b, name="power"), name="root")
    y = s.op("Mul", root, f32(1024.0), name="scale")
    inputs = {
        "real": signals(1, 64, seed=84, peak=2e-4),
        "imaginary": signals(1, 64, seed=85, peak=2e-4),
    }
    kept = {"real_square", "imaginary_square", "power", "root"}
    return Ill(s.proto(y), inputs, kept, {"underflow"})
