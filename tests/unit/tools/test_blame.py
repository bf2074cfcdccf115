"""A few runs say where a long quantised model's error comes from."""

import numpy as np
import pytest

from halfwise.case import Case, Samples, Settings
from halfwise.graph.excluding import without_pairs
from halfwise.graph.loading import network_from_proto
from halfwise.judging.reference import inspected_reference
from halfwise.progress import Silent
from halfwise.records import Criterion
from halfwise.tools import blame as blaming
from halfwise.tools.blame import blame
from tests.unit.graph.sketch import Sketch, f32

SIZE, LONG = 8, 75
X = f32(np.random.default_rng(2).normal(size=(4, 1, SIZE)))


def line(scales=None):
    """A line of products of rotations, each result quantised by a scale, if there are scales."""
    s, rng = Sketch(21), np.random.default_rng(1)
    value = s.input("x", [1, SIZE])
    for i in range(LONG):
        turn = f32(np.linalg.qr(rng.normal(size=(SIZE, SIZE)))[0])
        value = s.op("MatMul", value, turn, name=f"turn{i}")
        if scales is not None:
            scale, zero = s.constant(f32(scales(i))), s.constant(np.zeros((), np.int16))
            codes = s.op("QuantizeLinear", value, scale, zero, name=f"q{i}")
            value = s.op("DequantizeLinear", codes, scale, zero, name=f"dq{i}")
    return network_from_proto(s.proto(s.op("Identity", value, name="end")))


def blamed(monkeypatch, scales):
    written = list[int]()

    def counted(*args):
        written.append(len(args[1]))
        return without_pairs(*args)

    monkeypatch.setattr(blaming, "without_pairs", counted)
    original, samples = line(), Samples(("a", "b", "c", "d"), lambda i: {"x": X[i]})
    case = Case(original, samples, samples.select([]), Criterion(rel_max=0.01), None, (), "")
    references = inspected_reference(original, samples)[0]
    return blame(line(scales), case, references, Settings(), Silent()), len(written)


@pytest.mark.parametrize("bad", [0, 38, LONG - 1])
def test_one_of_many_is_found_in_few_runs(monkeypatch, bad):
    found, runs = blamed(monkeypatch, lambda i: 2.0 if i == bad else 1e-4)
    assert found is not None
    (one,) = found.left_out
    assert one.nodes == (f"turn{bad}",)
    assert one.share > 0.95
    assert found.parts == LONG
    assert runs < 30


def test_two_faults_of_one_size_are_both_found(monkeypatch):
    """Without either alone the error is as large as before."""
    found, runs = blamed(monkeypatch, lambda i: 2.0 if i in (10, 60) else 1e-4)
    assert found is not None
    assert {one.nodes for one in found.left_out} == {("turn10",), ("turn60",)}
    assert found.share > 0.95
    assert runs < 45


def test_what_is_spread_is_said_to_be(monkeypatch):
    found, runs = blamed(monkeypatch, lambda _: 0.05)
    assert found is not None
    assert found.is_lossy
    assert found.is_spread
    assert runs < 2 * blaming.MOST_GROUPS + 20
