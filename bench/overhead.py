"""Costs of emulation and observation, as multiples of plain inference in the same process."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.figures import Figure, at_most, reported
from bench.inference import Times, loaded, timed
from bench.runs import ROOT, Workbench
from halfwise.case import Case, Sample, Samples, Settings
from halfwise.emulation.accumulate import MIN_OPSET
from halfwise.emulation.ort import Session
from halfwise.emulation.probe import ExtremaProbe, observable
from halfwise.emulation.switched import SWITCH_INPUT, Switched, SwitchedRunner, emulate_switched
from halfwise.emulation.typed import emulate_typed
from halfwise.fixing.attribute import Attribution
from halfwise.fixing.loop import fix
from halfwise.fixing.rewrite import rewrite
from halfwise.formats import FP16
from halfwise.graph.conversion import raise_opset
from halfwise.graph.loading import network_from_proto
from halfwise.graph.movement import carried
from halfwise.graph.roles import Role, Roles, roles_of
from halfwise.metrics import Outputs
from halfwise.observing import observe_network
from halfwise.progress import Silent
from halfwise.records import NodeName

ASSIGNMENT, OBSERVATION, GROWTH = 4.0, 3.0, 0.1
SEARCH, TRIAL = 2.0, 3.0
SEARCHING = ("search", "certify")
SEARCH_SECONDS = 40.0
"""Time for one search, including the inference next to it."""
SEARCH_LEAST = 2.0
"""Least processor time of all searches on one model."""
SECONDS = 12.0
"""Time for one comparison."""
SAMPLES = 8
"""Samples that a comparison cycles through."""
FEW, MANY = 48, 384
"""Samples of the two observations whose memory is compared."""
CHAINS = (500, 5000)
OBSERVED = (3000, 20_000)
"""Nodes of the two chains that are observed whole."""
PER_NODE = 1.5


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the figures of the available models, and which models are missing."""
    figures: list[Figure] = []
    for subject in bench.subjects():
        case = loaded(subject)
        figures += [*assignments(subject.name, case), *searching(subject.name, case)]
        figures += [*observation(subject.name, case), low_sums(subject.name, case)]
    return [
        *figures,
        *memory(),
        *(f for n in CHAINS for f in creation(n)),
        linear(),
    ], bench.missing()


def assignments(name: str, case: Case) -> list[Figure]:
    """Time assignments in the switched session, made as `fix` makes it, and plain inference."""
    network, settings = case.network, Settings()
    roles = roles_of(network)
    few = case.calibration.select(range(min(SAMPLES, len(case.calibration))))
    observed = observe_network(network, few, settings.fmt, roles=roles, detail_samples=0)[0]
    limits = Attribution(network, roles, observed, settings.fmt, settings.headroom).limits
    switched = emulate_switched(network, roles, settings.fmt, limits=limits)
    session = Session(switched.model)
    samples = [dict(s) for s in few]

    def emulating(kept: frozenset[NodeName]) -> Callable[[], object]:
        switch = switched.switches.switch(kept | carried(network, roles, kept))
        feeds = cycle([{**s, SWITCH_INPUT: switch} for s in samples])
        return lambda: session.run(next(feeds))

    kept = plans(roles)
    times = timed(
        {
            **{plan: emulating(nodes) for plan, nodes in kept.items()},
            "optimised": _plain(Session(network.model, optimise=True), samples),
            "plain": _plain(Session(network.model), samples),
        },
        SECONDS,
    )
    slowest = max(kept, key=lambda plan: times[plan].median)
    what = f"{name}: one more assignment / inference"
    return [
        _ratio(f"{what}, ONNX Runtime's optimiser on", times, (slowest, "optimised"), ASSIGNMENT),
        _ratio(f"{what}, optimiser off", times, (slowest, "plain"), ASSIGNMENT),
    ]


def low_sums(name: str, case: Case) -> Figure:
    """Time the plain FP16 file with each product and each sum rounded, and plain inference."""
    network = (
        case.network if case.network.opset >= MIN_OPSET else raise_opset(case.network, MIN_OPSET)
    )
    few = [dict(s) for s in case.calibration.select(range(1))]
    none: frozenset[Any] = frozenset()
    made = rewrite(network, roles_of(network), none, FP16, fixed=none, low_io=none)
    sessions = {
        "rounded": Session(emulate_typed(made.model, accumulate="each")),
        "emulated": Session(emulate_typed(made.model)),
        "plain": Session(network.model),
    }
    times = timed({what: _plain(session, few) for what, session in sessions.items()}, SECONDS)
    seconds = {what: t.median for what, t in times.items()}
    note = f"{seconds['rounded'] / seconds['emulated']:.3g} times a run with sums in FP32"
    what = f"{name}: each product and sum rounded / inference"
    return reported(what, seconds["rounded"] / seconds["plain"], note)


def _ratio(what: str, times: dict[str, Times], names: tuple[str, str], limit: float) -> Figure:
    """Return how much longer the first of `names` takes than the second."""
    one, other = (times[name] for name in names)
    told = ", ".join(f"{name} {1e3 * t.median:.3g} ms" for name, t in times.items())
    note = f"medians: {told}; ratio of the fastest runs {one.fastest / other.fastest:.3g}"
    return at_most(what, one.median / other.median, limit, note)


def plans(roles: Roles) -> dict[str, frozenset[NodeName]]:
    """Return kept nodes: none, all, a random half."""
    compute = [name for name, role in roles.items() if role.role is Role.COMPUTE]
    half = np.random.default_rng(0).permutation(len(compute))[: len(compute) // 2]
    return {
        "all low": frozenset(),
        "all kept": frozenset(compute),
        "half kept": frozenset(compute[i] for i in half),
    }


@dataclass
class _Beside(Silent):
    """Runs inference after each trial of a search, on the same sample.

    Times are of the processor, of all threads: they hold on a busy machine, as no thread spins.

    Attributes:
        plain: Runs inference.
        within: When the search began; None while it is not running.
        spent: Seconds of the search, with the inference.
        trials: Seconds of each trial's run.
        inferences: Seconds of each inference after it.
        making: Seconds in which the search made another session.
    """

    plain: Session
    within: float | None = None
    spent: float = 0.0
    trials: list[float] = field(default_factory=list)
    inferences: list[float] = field(default_factory=list)
    making: float = 0.0

    def stage(self, name: str, total: int | None = None) -> None:
        """Note whether the search begins or ends."""
        del total
        now = time.process_time()
        self.spent += 0.0 if self.within is None else now - self.within
        self.within = now if name in SEARCHING else None

    def runner(
        self, make: Callable[[], Switched], whole: Callable[[], Switched], **given: Any
    ) -> SwitchedRunner:
        """Return a runner of trials that runs inference after each."""
        runner = SwitchedRunner(make, whole, **given)
        run, prepare = runner.run, runner.prepare

        def prepared(fp32: frozenset[NodeName]) -> None:
            started = time.process_time()
            prepare(fp32)
            self.making += (time.process_time() - started) * (self.within is not None)

        def both(sample: Sample, fp32: frozenset[NodeName]) -> Outputs:
            started = time.process_time()
            try:
                return run(sample, fp32)
            finally:
                ended = time.process_time()
                if self.within is not None:
                    self.plain.run(sample)
                    self.trials.append(ended - started)
                    self.inferences.append(time.process_time() - ended)

        runner.run, runner.prepare = both, prepared  # type: ignore[method-assign]
        return runner


def searching(name: str, case: Case) -> list[Figure]:
    """Time searches, run by run, against inference with all of ONNX Runtime's optimisations.

    A search of few runs is made again, as its times are too short for the processor's clock.
    """
    beside, searches = _Beside(Session(case.network.model, optimise=True)), 0
    while beside.spent < SEARCH_LEAST:
        with mock.patch("halfwise.fixing.loop.SwitchedRunner", beside.runner):
            fixed = fix(case, Settings(time_budget=SEARCH_SECONDS), beside)
        beside.stage("")
        searches += 1
    inference = sum(beside.inferences)
    runs, spent = len(beside.trials), beside.spent - beside.making - inference
    what = (
        f"processor time; {searches} searches of {runs // searches} runs, {fixed.evaluations} "
        f"evaluations, {len(fixed.plan.keep)} kept; a run of a trial "
        f"{1e3 * sum(beside.trials) / runs:.3g} ms, inference {1e3 * inference / runs:.3g} ms, all "
        f"else {1e3 * (spent - sum(beside.trials)) / runs:.2g} ms a run; without "
        f"{beside.making / searches:.2g} s for another session"
    )
    ratios = [t / i for t, i in zip(beside.trials, beside.inferences, strict=True)]
    return [
        at_most(f"{name}: search / its runs' inference", spent / inference, SEARCH, what),
        at_most(f"{name}: a run of a trial / inference, median", statistics.median(ratios), TRIAL),
    ]


def _plain(session: Session, samples: list[dict[str, np.ndarray]]) -> Callable[[], object]:
    feeds = cycle(samples)
    return lambda: session.run(next(feeds))


def observation(name: str, case: Case) -> list[Figure]:
    """Time the extrema of every tensor over all samples, and inference on them."""
    model, samples = case.network.model, [dict(s) for s in case.calibration]
    probe = ExtremaProbe(model, observable(model))
    plain, optimised = Session(model), Session(model, optimise=True)
    times = timed(
        {
            "observing": lambda: [probe.run(s) for s in samples],
            "plain": lambda: [plain.run(s) for s in samples],
            "optimised": lambda: [optimised.run(s) for s in samples],
        },
        SECONDS,
    )
    what = f"{name}: absmax over all samples / inference"
    return [
        _ratio(f"{what}, optimiser off", times, ("observing", "plain"), OBSERVATION),
        reported(
            f"{what}, ONNX Runtime's optimiser on",
            times["observing"].median / times["optimised"].median,
        ),
    ]


def memory() -> list[Figure]:
    """Compare the peak memory of processes that observe few and many samples of the digits."""
    few, many = (_peak(count) for count in (FEW, MANY))
    what = f"digits: growth of peak memory from {FEW} to {MANY} observed samples"
    note = f"{few / 2**20:.0f} MiB, {many / 2**20:.0f} MiB"
    return [at_most(what, many / few - 1, GROWTH, note)]


def _peak(count: int) -> int:
    command = [sys.executable, str(ROOT / "bench" / "observe_memory.py"), str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout)


def creation(nodes: int) -> list[Figure]:
    """Time once how long it takes to make a session for a graph of `nodes` nodes."""
    network = network_from_proto(chain(nodes))
    started = time.perf_counter()
    Session(network.model)
    plain = time.perf_counter() - started
    started = time.perf_counter()
    switched = emulate_switched(network, roles_of(network), Settings().fmt)
    built = time.perf_counter() - started
    Session(switched.model)
    whole = time.perf_counter() - started
    note = f"of which {built:.2g} s to build the graph; a plain session takes {plain:.2g} s"
    return [reported(f"switched session of {nodes} nodes (s)", whole, note)]


def linear() -> Figure:
    """Compare the processor time per node of observing a short chain and a long one."""
    few, many = (_observing(nodes) / nodes for nodes in OBSERVED)
    what = f"observing, processor time per node, {OBSERVED[1]} nodes / {OBSERVED[0]}"
    return at_most(what, many / few, PER_NODE, f"{1e3 * few:.2g} and {1e3 * many:.2g} ms")


def _observing(nodes: int) -> float:
    network = network_from_proto(chain(nodes))
    sample = {"x": np.ones((1, 16), np.float32)}
    samples = Samples(tuple(map(str, range(SAMPLES))), lambda _: sample)
    started = time.process_time()
    observe_network(network, samples, Settings().fmt, roles=roles_of(network))
    return time.process_time() - started


def chain(nodes: int, width: int = 16) -> onnx.ModelProto:
    """Return alternating MatMul, Add and Relu on f32[1, width], each with its own weights."""
    rng = np.random.default_rng(0)
    made, weights, value = [], [], "x"
    for i in range(nodes):
        op, shape = (("MatMul", (width, width)), ("Add", (width,)), ("Relu", None))[i % 3]
        inputs = [value]
        if shape is not None:
            array = (rng.standard_normal(shape) / width**0.5).astype(np.float32)
            weights.append(numpy_helper.from_array(array, f"w{i}"))
            inputs.append(f"w{i}")
        value = f"v{i}"
        made.append(helper.make_node(op, inputs, [value], name=f"n{i}"))
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, width]) for n in ("x", value)]
    graph = helper.make_graph(made, "chain", infos[:1], infos[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
