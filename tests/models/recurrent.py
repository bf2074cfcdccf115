"""Recurrence: states that grow inside an op, which shows in none of its tensors."""

import numpy as np

from tests.models.illness import Ill, illness, signals, weights
from tests.unit.graph.sketch import Sketch, f32

FAMILY = "Recurrence"
STEPS = 3000


def counting(s: Sketch, x: str) -> str:
    """Add an LSTM whose cell adds up tanh(x); return its last cell state f32[1, 1, 1]."""
    # Rows: input, output, forget, cell. The gates are open: sigmoid(20) = 1.
    w, r = f32([[[0], [0], [0], [1]]]), f32(np.zeros((1, 4, 1)))
    b = f32([[20, 20, 20, 0, 0, 0, 0, 0]])
    s.op("LSTM", x, w, r, b, name="lstm", hidden_size=1)
    s.nodes[-1].output[:] = ["", "last_h", "last_c"]
    return "last_c"


@illness(FAMILY, "mindee/doctr#2111")
def lstm() -> Ill:
    """3000 steps of an LSTM that counts to 2000: its state is inside, in FP32."""
    s = Sketch()
    x = s.input("x", [STEPS, 1, 1])
    y = s.op("Mul", counting(s, x), f32(1 / 1024), name="scale")
    inputs = {"x": f32(1 + signals(STEPS, 1, 1, seed=110))}
    return Ill(s.proto(y), inputs)


@illness(FAMILY, "mindee/doctr#2111")
def lstm_surplus() -> Ill:
    """How far an LSTM's count of 2500 is from the expected one: stored, it is off by one."""
    s = Sketch()
    x = s.input("x", [STEPS, 1, 1])
    expected = s.input("expected", [1, 1, 1])
    y = s.op("Sub", counting(s, x), expected, name="surplus")
    steps = np.random.default_rng(111).uniform(0.8, 1.6, (8, STEPS, 1, 1))
    totals = np.tanh(steps).sum(axis=1, keepdims=True)
    offsets = np.linspace(-6, 7, 8).reshape(8, 1, 1, 1)
    inputs = {"x": f32(steps), "expected": f32(np.round(totals / 8) * 8 + offsets)}
    return Ill(s.proto(y), inputs, {"lstm", "surplus"}, {"cancellation"})


@illness(FAMILY, "mindee/doctr#2111")
def gru() -> Ill:
    """200 steps of a GRU: a state between -1 and 1 needs nothing."""
    s = Sketch()
    x = s.input("x", [200, 1, 4])
    # Eight units: with four the builder of TensorRT for RTX is not done in 25 minutes.
    w, r = weights(1, 24, 4, seed=112, scale=0.5), weights(1, 24, 8, seed=113, scale=0.2)
    y = s.op("GRU", x, w, r, name="gru", hidden_size=8)
    return Ill(s.proto(y), {"x": signals(200, 1, 4, seed=114, peak=2)})
