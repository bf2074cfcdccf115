"""Squares, spectra and eps constants that become zero where something divides or takes a log."""

import numpy as np

from tests.models.illness import Ill, illness, signals
from tests.unit.graph.sketch import Sketch, f32

FAMILY = "Underflow and eps"
EPS = ("pytorch/pytorch#32137", "pytorch/pytorch#41527", "microsoft/onnxconverter-common#153")


@illness(FAMILY, *EPS)
def logarithm() -> Ill:
    """log(x² + 1e-10): the square becomes zero, and the eps 6e-8."""
    s = Sketch()
    x = s.input("x", [1, 64])
    square = s.op("Mul", x, x, name="square")
    y = s.op("Log", s.op("Add", square, f32(1e-10), name="eps"), name="log")
    inputs = {"x": f32(signals(1, 64, seed=6) * 2e-4)}
    return Ill(s.proto(y), inputs, {"square", "eps", "log"}, {"eps", "underflow"})


@illness(FAMILY)
def bare_logarithm() -> Ill:
    """log(x²): the square becomes zero, and its logarithm -inf."""
    s = Sketch()
    x = s.input("x", [1, 64])
    y = s.op("Log", s.op("Mul", x, x, name="square"), name="log")
    inputs = {"x": f32(signals(1, 64, seed=6) * 2e-4)}
    return Ill(s.proto(y), inputs, {"square", "log"}, {"underflow"})


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


@illness(FAMILY)
def log_mel() -> Ill:
    """A log-mel spectrum: next to loud tones, quiet bins drown in the rounding of the signal."""
    s = Sketch()
    signal = s.input("signal", [1, 8, 33])
    late, early = (s.op("Slice", signal, [i], [i + 32], [2], name=f"slice_{i}") for i in (1, 0))
    scaled = s.op("Mul", early, f32(0.97), name="scale")
    emphasised = s.op("Sub", late, scaled, name="emphasise")
    angles = 2 * np.pi / 32 * np.outer(np.arange(32), np.arange(1, 16))
    real = s.op("MatMul", emphasised, f32(np.cos(angles)), name="real")
    imaginary = s.op("MatMul", emphasised, f32(np.sin(angles)), name="imaginary")
    squares = [
        s.op("Mul", v, v, name=f"{name}_square")
        for name, v in (("real", real), ("imaginary", imaginary))
    ]
    power = s.op("Add", *squares, name="power")
    bank = f32(np.repeat(np.eye(5), 3, axis=0))
    mel = s.op("MatMul", power, bank, name="mel")
    y = s.op("Log", s.op("Clip", mel, f32(1e-4), name="clip"), name="log")
    turns = 2 * np.pi / 32 * np.arange(33)
    phases = signals(1, 8, 1, seed=86, peak=np.pi)
    tones = 14 * np.sin(2 * turns + phases) + 14 * np.sin(3 * turns - phases)
    quiet = signals(1, 8, 33, seed=87, peak=1e-3)
    kept = {"scale", "emphasise", "real", "imaginary"}
    return Ill(s.proto(y), {"signal": f32(tones + quiet)}, kept, {"cancellation"})
