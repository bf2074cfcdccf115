"""How often more inputs fail than the verdict's bound says: random models on heavy-tailed data.

Each draw is a small network (products, squares, exponentials, divisions, norms) and a distribution
of inputs whose tails leave FP16's range, at a random rate. `fix` gets very few samples to search
on, no margin and no headroom, so that its plans fail on many inputs, and a few held-out samples;
then the written model is emulated on 10,000 more. Every third draw has no search: everything is
low.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bench.figures import Figure, at_least, at_most, reported
from bench.runs import Workbench
from halfwise import api
from halfwise.emulation.ort import Session
from halfwise.emulation.typed import emulate_typed
from halfwise.graph.loading import network_from_proto
from halfwise.metrics import OutputMeasure, totals
from halfwise.records import Criterion

DRAWS, FURTHER = 100, 10_000
WIDTH = 8
SHARE = 0.1
"""Of the inputs that may fail, in the draws with `--failing`: 29 samples show it."""
ALLOWED = 5
"""How many of 100 bounds with 95 % confidence may be broken."""
CRITERIA: tuple[dict[str, Any], ...] = ({}, {"rel_max": 0.001}, {"max_abs": 0.01}, {"snr_db": 50})


@dataclass(frozen=True)
class Draw:
    """The result of one draw.

    Attributes:
        seed: Its seed.
        criterion: Options of acceptance.
        judged: Held-out samples in the verdict.
        failing: How many of them fail.
        joined: Held-out samples that joined the search.
        bound: The printed bound.
        true: Share of the further samples that fail.
        passed: Whether the verdict passed.
        share: The share of inputs that may fail; None if none may.
        kept: Nodes in FP32.
    """

    seed: int
    criterion: dict[str, Any]
    judged: int
    failing: int
    joined: int
    bound: float
    true: float
    passed: bool
    share: float | None
    kept: int

    @property
    def broken(self) -> bool:
        return self.true > self.bound


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return how many of 100 printed bounds are broken, without and with `--failing`."""
    draws = [draw(seed) for seed in range(DRAWS)]
    rated = [draw(seed, share=SHARE) for seed in range(DRAWS)]
    bench.details["coverage"] = [asdict(one) for one in (*draws, *rated)]
    passed = [one for one in rated if one.passed]
    beyond = sum(one.true > SHARE for one in passed)
    with_share = f"--failing {SHARE:.0%}"
    return [
        *figures(draws),
        at_most(
            f"{with_share}: true failure rate above the bound",
            _broken(rated),
            ALLOWED,
            f"of {len(rated)}",
        ),
        at_most(f"{with_share}: passed, and more fail", beyond, ALLOWED, f"of {len(passed)}"),
        at_least(f"{with_share}: passed", len(passed), DRAWS / 3, f"of {len(rated)}"),
    ], None


def figures(draws: Sequence[Draw]) -> list[Figure]:
    """Return how many of the printed bounds are broken, and where."""
    kinds = {
        "where held-out samples joined the search": [one for one in draws if one.joined],
        "where the verdict passed": [one for one in draws if one.passed],
    }
    rates = [one.true for one in draws]
    return [
        at_most("true failure rate above the bound", _broken(draws), ALLOWED, f"of {len(draws)}"),
        *(
            reported(f"the same {where}", _broken(some), f"of {len(some)}")
            for where, some in kinds.items()
        ),
        at_least(
            "draws in which some further input fails",
            sum(rate > 0 for rate in rates),
            len(draws) / 3,
            f"of {len(draws)}; the largest true rate is {max(rates):.3g}",
        ),
        reported(
            "largest true rate over its bound, where that is below 1",
            max((one.true / one.bound for one in draws if one.bound < 1), default=0.0),
        ),
    ]


def _broken(draws: Sequence[Draw]) -> int:
    return sum(one.broken for one in draws)


def draw(seed: int, further: int = FURTHER, share: float | None = None) -> Draw:
    """Return the result for one model and distribution.

    Args:
        seed: Of both.
        further: Samples to test the bound on.
        share: The share of inputs that may fail; None for none. Then more samples are held out.
    """
    rng = np.random.default_rng(seed)
    model, data = drawn_model(rng), Distribution(rng)
    criterion = CRITERIA[seed % len(CRITERIA)]
    counts = (1, 4), (8, 25) if share is None else (30, 90)
    searched, heldout = (data.take(int(rng.integers(*sizes))) for sizes in counts)
    how: dict[str, Any] = {"lower": [".*"]} if seed % 3 == 0 else {"margin": 1.0, "headroom": 1.0}
    result = api.fix(
        model,
        [{"x": row[None]} for row in searched],
        heldout=[{"x": row[None]} for row in heldout],
        time_budget=20,
        failing=share,
        **how,
        **criterion,
    )
    run = result.run
    assert run.verdict.failure_bound is not None
    assert run.search is not None
    assert run.plan is not None
    assert result.mixed is not None
    rows = data.take(further)
    reference = Session(network_from_proto(model).model)
    known = [i for i in range(len(heldout)) if f"inputs[{i}]" in run.verdict.samples]
    assert len(known) == len(run.verdict.samples)
    judged = reference.run({"x": heldout[known]})["y"]
    expected = reference.run({"x": rows})["y"]
    found = Session(emulate_typed(result.mixed)).run({"x": rows})["y"]
    return Draw(
        seed=seed,
        criterion=criterion,
        judged=run.verdict.failure_bound.judged,
        failing=run.verdict.failure_bound.failing,
        joined=len(run.search.joined),
        bound=run.verdict.failure_bound.upper,
        true=_failing(expected, found, judged, run.criterion),
        passed=run.verdict.passed,
        share=share,
        kept=len(run.plan.keep),
    )


def _failing(
    expected: NDArray[Any], found: NDArray[Any], judged: NDArray[Any], criterion: Criterion
) -> float:
    """Return the share of rows that fail by themselves, at the scales of the judged samples."""
    measure = OutputMeasure(totals([{"y": row[None]} for row in judged])["y"])
    for i, (reference, candidate) in enumerate(zip(expected, found, strict=True)):
        measure.update(reference[None], candidate[None], str(i))
    return sum(measure.failing(criterion)) / len(expected)


class Distribution:
    """Rows from Student's t distribution with 2 to 6 degrees of freedom, some on another scale."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._freedom = rng.uniform(2, 6)
        self._scale = 10 ** rng.uniform(-1, 1.5)
        self._rare = rng.uniform(0, 0.3)
        self._factor = 10 ** rng.uniform(0.5, 3)

    def take(self, count: int) -> NDArray[np.float32]:
        """Return f32[count, WIDTH]: independently drawn rows."""
        rows = self._rng.standard_t(self._freedom, (count, WIDTH)) * self._scale
        rare = self._rng.random((count, 1)) < self._rare
        return np.where(rare, rows * self._factor, rows).astype(np.float32)


def drawn_model(rng: np.random.Generator) -> onnx.ModelProto:
    """Return a network [N, WIDTH] → [N, WIDTH] of two to four random layers; rows do not mix."""
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def constant(value: NDArray[Any] | float) -> str:
        constants.append(
            numpy_helper.from_array(np.asarray(value, np.float32), f"c{len(constants)}")
        )
        return constants[-1].name

    def op(kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [f"{name}_out"], name, **attributes))
        return f"{name}_out"

    def product(x: str) -> str:
        weights = rng.standard_normal((WIDTH, WIDTH)) * 10 ** rng.uniform(-1, 1) / WIDTH**0.5
        return op("MatMul", x, constant(weights))

    def norm(x: str) -> str:
        square = op("ReduceMean", op("Mul", x, x), axes=[1], keepdims=1)
        return op("Div", x, op("Sqrt", op("Add", square, constant(1e-5))))

    layers: tuple[Callable[[str], str], ...] = (
        lambda x: op("Relu", product(x)),
        lambda x: op("Mul", x, x),
        lambda x: op("Exp", op("Neg", op("Abs", x))),
        lambda x: op("Div", x, op("Add", op("Abs", x), constant(1.0))),
        lambda x: op("Sub", op("Add", x, constant(rng.uniform(0, 500))), constant(1.0)),
        norm,
    )
    x = product("x")
    for _ in range(rng.integers(2, 5)):
        x = layers[rng.integers(len(layers))](x)
    op("MatMul", x, constant(rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5))
    nodes[-1].output[0] = "y"
    ends = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", WIDTH]) for n in "xy")
    graph = helper.make_graph(nodes, "drawn", [next(ends)], [next(ends)], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
