import pytest

from halfwise.graph.modern.softmaxes import read_softmaxes
from tests.unit.graph.sketch import Sketch


def found(form, *, opset=17, axis=-1, rank=2, **options):
    s = Sketch(opset)
    x = s.input("x", [4] * rank)
    exp = s.op("Exp", x)
    total = s.op("ReduceSum", exp, [axis], **options)
    y = {
        "quotient": lambda: s.op("Div", exp, total),
        "product": lambda: s.op("Mul", s.op("Reciprocal", total), exp),
        "inverse": lambda: s.op("Mul", exp, s.op("Div", 1.0, total)),
        "logarithm": lambda: s.op("Sub", x, s.op("Log", total)),
        "other": lambda: s.op("Div", total, exp),
        "eps": lambda: s.op("Div", exp, s.op("Add", total, 1e-6)),
    }[form]()
    return [(r.op, r.x.name, r.axis) for r in read_softmaxes(s.network(y))]


@pytest.mark.parametrize("form", ["quotient", "product", "inverse", "logarithm"])
def test_spellings(form):
    op = "LogSoftmax" if form == "logarithm" else "Softmax"
    assert found(form) == [(op, "x", 1)]
    assert found(form, axis=0, rank=3) == [(op, "x", 0)]


def test_what_is_none():
    assert not found("other")
    assert not found("eps")
    assert not found("quotient", keepdims=0)
