"""Decisions as the cause of an error: shown by giving the low model those of the reference."""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.emulation.runner import ModelRunner
from halfwise.emulation.typed import emulate_typed
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.graph.model import node_name
from halfwise.judging.deciding import Deciding, _undoes, with_true_values
from halfwise.metrics import Computed
from halfwise.records import Decided, Flip, TensorName
from tests import models
from tests.unit.casing import names, prepare
from tests.unit.graph.sketch import Sketch, f32


def near_a_threshold(op: str, weight: float, count: int = 2) -> models.Ill:
    """Scores at most 1/4096 from a threshold, which FP16 rounds across; what they choose counts.

    Beside that, an offset of 1000 costs the output its low bits.
    """
    s = Sketch()
    score = s.op("Mul", s.input("x", [1, 64]), f32(2.0), name="score")
    chosen = s.op(op, score, *([f32(1.5)] if op == "Greater" else []), name="choose")
    as_float = s.op("Cast", chosen, name="float", to=1) if op == "Greater" else chosen
    weighed = s.op("Mul", as_float, f32(weight), name="weigh")
    shifted = s.op("Add", weighed, f32(1000.0), name="shift")
    y = s.op("Add", s.op("Sub", shifted, f32(1000.0), name="back"), score, name="end")
    x = 0.75 + np.random.default_rng(1).uniform(-1, 1, (count, 1, 64)) / 8192
    return models.Ill(s.proto(y), {"x": x.astype(np.float32)})


def cause(ill: models.Ill, tried: list[int] | None = None) -> Decided | None:
    prepared = prepare(ill)
    low = emulate_typed(rewrite(prepared.network, prepared.roles, names(), FP16).model)
    bench = prepared.bench()
    errors = [*bench.contributions(names(), range(len(bench.samples)))]
    run = with_true_values(low, prepared.network)

    def counted(tensors: Sequence[TensorName], samples: Samples) -> Iterator[Computed]:
        if tried is not None:
            tried.append(len(samples))
        return run(tensors, samples)

    look = Deciding(
        prepared.network,
        prepared.roles,
        lambda samples: ModelRunner(low, samples, partial=True),
        counted,
        bench.error,
        bench.samples,
    )
    return look.cause(errors)


@pytest.mark.parametrize("op", ["Greater", "Round"])
def test_decisions_that_change_are_the_cause_if_the_true_ones_undo_the_error(op):
    decided_by = cause(near_a_threshold(op, 4.0))
    assert decided_by is not None
    (flip,) = decided_by.flips
    assert (flip.node, flip.of, decided_by.samples) == ("choose", 128, 2)
    assert 0 < flip.elements < 128
    assert set(decided_by.nodes) == {"score", "choose"}
    assert decided_by.left < 1 < decided_by.error < inf


def test_four_samples_are_tried_first() -> None:
    tried: list[int] = []
    assert cause(near_a_threshold("Greater", 4.0, 6), tried) is not None
    assert tried == [4, 2]


def test_eight_decisions_are_tried_one_by_one() -> None:
    s = Sketch()
    x = s.input("x", [1])
    network = s.network(*(s.op("Greater", x, f32(i), name=f"n{i}") for i in range(10)))
    every = {node_name(node): node for node in network.nodes()}
    flips = tuple(Flip(node=name, op="Greater", elements=1, of=2) for name in every)
    nothing: Any = None
    look = Deciding(nothing, nothing, nothing, nothing, nothing, nothing)
    assert [len(group) for group in look._groups(flips, every)] == [1] * 8 + [10]


def test_what_leaves_half_of_an_error_undoes_it() -> None:
    assert _undoes(0.5, 1.0)
    assert not _undoes(0.51, 1.0)


def decided_output(op: str, *, read: bool) -> models.Ill:
    """A decision near a threshold that the model outputs, and perhaps computes with."""
    s = Sketch()
    score = s.op("Mul", s.input("x", [1, 64]), f32(2.0), name="score")
    chosen = s.op(op, score, *([f32(1.5)] if op == "Greater" else []), name="choose")
    outputs = (chosen, s.op("Mul", chosen, f32(4.0), name="weigh")) if read else (chosen,)
    return models.Ill(s.proto(*outputs), {"x": near_a_threshold(op, 1.0).inputs["x"]})


@pytest.mark.parametrize(("op", "read"), [("Greater", False), ("Round", False), ("Round", True)])
def test_decisions_that_the_model_outputs_are_the_cause(op, read):
    decided_by = cause(decided_output(op, read=read))
    assert decided_by is not None
    assert [flip.node for flip in decided_by.flips] == ["choose"]
    assert decided_by.left == 0 < decided_by.error


def test_decisions_that_change_are_no_cause_where_the_error_is_another():
    assert cause(near_a_threshold("Greater", 1e-6)) is None


def test_without_decisions_there_is_no_such_cause():
    assert cause(models.deep(layers=3)) is None
