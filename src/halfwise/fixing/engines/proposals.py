"""What to try if an engine is worse than predicted, cannot be built, or is slow.

The place where it departs from the emulation is searched a few tensors at a time.

Marking a tensor as an output ends a fusion there, so the examined engine is a different one: few
are marked at once, and the resulting change of the final outputs is reported.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

import onnx_ir as ir

from halfwise.case import CPU, Runtime, Sample, Samples
from halfwise.emulation.runner import ModelRunner
from halfwise.emulation.typed import TENSOR_CORE_OPS, emulate_typed
from halfwise.fixing.engines.attempts import WITH_TF32, Assignment, Attempts, Candidate, Plan, Terms
from halfwise.fixing.engines.moves import Allowed, Moves, Proposal, Refusals, Shown
from halfwise.graph.fusions import wider
from halfwise.graph.model import Network, is_standard, node_name
from halfwise.graph.roles import Role, Roles, is_float
from halfwise.interruption import Interruption, interruption
from halfwise.metrics import Outputs, finite_relative_rms
from halfwise.records import NodeName, ProvenEngine, Spared, TensorName
from halfwise.tensorrt.failures import ENGINE_FAULTS
from halfwise.wording import number

FUTILE = 1.07
"""If the low format with nothing kept, and TF32 allowed, takes this many times as long as an FP32
or TF32 engine that is proven, no plan is searched: keeping nodes gains no speed. Of the 15 mixed
engines on an H200 in `bench/results/gpu_*.json` one was 6 % faster than the one with nothing kept,
by chance (another build of its plan took 1.3 times as long), and no other one more than 1 %."""
NEAR = 1.05
"""Engines timed alone, at different times, that differ by less take turns before one of them counts
as slower. Our choice: builds of one plan with the same kernels differed by up to 2 % on an H200."""
SLOW = 1.1
"""A mixed engine that takes more than this many times as long as plain FP16 is worth wider
islands."""


Attempt = Callable[[Assignment, str, Terms], Candidate]


def futile(first: Candidate, plain: Candidate, full: ProvenEngine | None) -> Spared | None:
    """Return why the low format is slower than a proven engine; None if it is not.

    Nothing is predicted in strong typing: kept nodes may have faster kernels there.

    Args:
        first: The first plan built.
        plain: The engine with nothing kept.
        full: The fastest proven FP32 or TF32 engine; None if there is none.
    """
    if full is None or full.median_ms is None or plain.latency is None:
        return None
    if plain.build.config.typing == "strong":
        return None
    if min(first.milliseconds, plain.milliseconds) < FUTILE * full.median_ms:
        return None
    return Spared(
        kind="slower",
        build=plain.build.number,
        median_ms=plain.milliseconds,
        full=full.build,
        full_ms=full.median_ms,
    )


def without_futile(
    first: Candidate, plain: Candidate, full: ProvenEngine | None, attempt: Attempt
) -> tuple[Candidate, Spared | None]:
    """Return the build to continue from, or why to stop; no reason if a plan may be the fastest.

    If an engine with TF32 is faster than everything low, low kernels may be slow where TF32 is not.
    Then TF32 is allowed: with nothing kept, all kernels are free. If that engine is slow too, no
    plan is searched; if it is off, the search continues from the plan with TF32.

    Args:
        first: The first plan built.
        plain: The engine with nothing kept.
        full: The fastest proven FP32 or TF32 engine; None if there is none.
        attempt: Builds and measures a plan; receives the reason and the terms.
    """
    if futile(first, plain, full) is None:
        return first, None
    freest = attempt(frozenset(), "plain low precision with TF32", WITH_TF32)
    spared = futile(freest, freest, full)
    if spared is not None or freest.passed or not first.keep:
        return freest, spared
    return attempt(first.keep, "the same plan with TF32", WITH_TF32), None


def slow(candidate: Candidate, plain: Candidate) -> bool:
    """Return whether a plan's kept nodes make its engine slow."""
    is_slow = SLOW * plain.milliseconds < candidate.milliseconds < inf
    return is_slow and len(candidate.keep) > 0


def quicker(one: Candidate, other: Candidate) -> bool:
    """Return whether an engine seems faster than another, each timed alone."""
    return one.milliseconds < other.milliseconds < inf


def near(one: Candidate, other: Candidate) -> bool:
    """Return whether an engine may be faster than another, each timed alone."""
    return one.milliseconds < NEAR * other.milliseconds < inf


def tf32_note(fastest: Candidate, best: Candidate) -> str:
    """Return a sentence on what TF32 gains for kept nodes."""
    assert fastest.excess is not None
    assert best.excess is not None
    return (
        "TF32 is allowed for the kept nodes of the engine that the search chose: a run takes "
        f"{number(fastest.milliseconds)} ms with it and {number(best.milliseconds)} ms "
        f"without; the error is {number(fastest.excess)} and {number(best.excess)} of what is "
        "allowed."
    )


@dataclass
class Budget:
    """Builds left for new plans; none after Ctrl-C.

    Attributes:
        builds: How many are left, ignoring Ctrl-C.
        over: Returns whether Ctrl-C came after an engine was proven: then nothing more is built.
    """

    builds: int
    over: Callable[[], bool] = lambda: False
    interruption: Interruption = field(default_factory=interruption)

    @property
    def left(self) -> int:
        """How many may be spent."""
        return 0 if self.interruption.asked else self.builds

    @property
    def interrupted(self) -> bool:
        """Whether some are left that only Ctrl-C forbids to spend."""
        return self.interruption.asked and self.builds > 0

    def take(self) -> None:
        """Use one build."""
        self.builds -= 1


MARKED = 6
"""Tensors marked at once: each may end a fusion, so only a few leave the engine as it is."""
WORSE = 4.0
"""An engine departs where its error is this many times the emulation's. Our choice: on
an H200 the errors of engines that passed were 1.4 to 2.8 times what the emulation predicted."""
NOISE = 1e-3
"""Relative error below which nothing counts as a departure: one rounding to FP16 is 5e-4."""

RunMarked = Callable[[Sequence[TensorName]], Outputs | None]
"""Builds and runs the plan with further outputs; returns all, or None without an engine."""


@dataclass(frozen=True)
class Departure:
    """Where an engine departs from the emulation.

    Attributes:
        nodes: Low compute nodes among which it departs, in graph order.
        tensor: The first tensor seen to be off.
        error: Its relative RMS error in the engine.
        predicted: The same error in the emulation.
        builds: Builds used.
    """

    nodes: tuple[NodeName, ...]
    tensor: TensorName
    error: float
    predicted: float
    builds: int


def localise(
    network: Network,
    roles: Roles,
    emulation: ir.Model,
    sample: Sample,
    run_marked: RunMarked,
    *,
    rounds: int,
    runtime: Runtime = CPU,
) -> Departure | None:
    """Return the nodes among which the engine first departs from the emulation of its plan.

    Args:
        network: The FP32 model.
        roles: Roles of its nodes.
        emulation: Typed emulation of the plan, with the network's tensor names.
        sample: A sample on which the engine's error is too large.
        run_marked: Builds and runs the plan with further outputs.
        rounds: Maximum number of builds.
        runtime: Where the model and the emulation run.

    Returns:
        The departure; None if no marked tensor is off, or no engine could be built.
    """
    line = _line(network, roles)
    one = Samples(("sample",), lambda _: sample)

    def values(model: ir.Model, names: Sequence[TensorName]) -> Outputs:
        partial = model is emulation
        tensors = ModelRunner(model, one, partial=partial, runtime=runtime)
        return next(tensors.get(names))

    low, high, found, used = 0, len(line), None, 0
    while used < rounds and high - low > 1:
        places = spread(low, high, MARKED)
        names = [line[i][1] for i in places]
        outputs = run_marked(names)
        used += 1
        if outputs is None:
            break
        off = _first_off(names, outputs, values(network.model, names), values(emulation, names))
        if off is None:  # other marks give another engine: use what is known
            break
        index, error, expected = off
        high = places[index] + 1
        low = places[index - 1] + 1 if index else low
        found = (names[index], error, expected)
    if found is None:
        return None
    nodes = tuple(dict.fromkeys(name for names, _ in line[low:high] for name in names))
    return Departure(nodes, *found, used)


def _line(network: Network, roles: Roles) -> list[tuple[tuple[NodeName, ...], TensorName]]:
    """Return the float outputs of compute nodes, in graph order.

    Each comes with the compute nodes since the previous one.
    """
    line, nodes = [], []
    for node in network.nodes():
        if roles[node_name(node)].role is not Role.COMPUTE:
            continue
        nodes.append(node_name(node))
        for value in node.outputs:
            name = TensorName(value.name or "")
            if name and is_float(value):
                line.append((tuple(nodes), name))
                nodes = [node_name(node)]
        if line and line[-1][0][-1] == node_name(node):
            nodes = []
    return line


def spread(low: int, high: int, most: int) -> list[int]:
    """Return at most `most` indices in [low, high), evenly spread, including the last."""
    count = min(most, high - low)
    return sorted({low + round((i + 1) * (high - low) / count) - 1 for i in range(count)})


def _first_off(
    names: Sequence[TensorName], outputs: Outputs, expected: Outputs, predicted: Outputs
) -> tuple[int, float, float] | None:
    for index, name in enumerate(names):
        if name not in outputs:
            continue
        error = finite_relative_rms(expected[name], outputs[name])
        # What the emulation does not reach is no worse in an engine.
        usual = finite_relative_rms(expected[name], predicted[name]) if name in predicted else inf
        if error > max(NOISE, WORSE * usual):
            return index, error, usual
    return None


LOCALISING = 2
"""Builds with marked tensors per failing candidate: with six tensors each they narrow it to 1 of
36."""


@dataclass
class Proposals:
    """Proposes plans from an engine's results; each set with its reason, most promising first.

    Attributes:
        attempts: Builds plans, also with further outputs.
        budget: Builds left to spend.
        ruled: Nodes that the user's rules keep.
    """

    attempts: Attempts
    budget: Budget
    ruled: Assignment

    def __post_init__(self) -> None:
        """Take the case and workbench from the attempts."""
        self.planner, self.bench = self.attempts.planner, self.attempts.bench
        self.measure = self.bench.measure
        network, roles = self.planner.case.network, self.planner.roles
        shown = Shown(self.bench, self.planner)
        self.refusals = Refusals(network, roles, self.attempts.fp32, shown.blocks)
        for build in self.bench.builds.outcomes:  # of the FP32 model
            self.refusals.take(build, None)

    def culprits(self, failed: Candidate) -> Iterator[tuple[str, Assignment]]:
        """Yield sets of nodes to add to a plan whose engine is off, most promising first.

        If what is kept is not actually FP32, more of the same will not help: wider islands leave
        the builder no region to fuse it into.
        """
        keep, lowered = failed.keep, frozenset(self.planner.forced.lowered)
        departure = self._departure(failed)
        if departure is not None:
            nodes = frozenset(departure.nodes) - keep - lowered
            where = " to ".join(dict.fromkeys((departure.nodes[0], departure.nodes[-1])))
            self.bench.notes.append(
                f"the engine departs from the emulation in {where}: relative error "
                f"{number(departure.error)}, {number(departure.predicted)} predicted"
            )
            yield f"where the engine departs from the emulation ({where})", nodes
        evidence = self.planner.evidence
        allowed = frozenset(n for n, r in self.planner.roles.items() if r.free) - lowered
        certain = frozenset().union(*evidence.certain) & allowed
        islands = [(f"wider islands: {name}", wide - keep) for name, wide in self.wider(keep)]
        yield from islands if failed.ignored else ()
        yield "what guards are certain about", certain - keep
        yield "everything that guards suspect", (evidence.suspected & allowed) - keep
        yield from () if failed.ignored else islands

    def unbuildable(self, failed: Candidate) -> Iterator[Proposal]:
        """Yield what to try in place of a plan that gave no engine."""
        refused = self.refusals.of(failed)
        network, roles = self.planner.case.network, self.planner.roles
        allowed = Allowed.on(self.bench)
        moves = Moves(network, roles, failed, refused.region, refused.kind, allowed)
        yield from (p for p in moves.proposals() if self._is_allowed(p.keep))

    def refused(self, plan: Plan) -> bool:
        """Return whether the builder would refuse a plan for the reason it refused another."""
        return self.refusals.expected(plan)

    def hear(self, candidate: Candidate) -> None:
        """Remember a refused candidate."""
        self.refusals.take(candidate.build, candidate.plan)

    def is_elsewhere(self, refused: Candidate) -> bool:
        """Return whether a candidate was refused in a region without earlier refusals."""
        return self.refusals.is_elsewhere(refused)

    def gains_from_tf32(self, keep: Assignment) -> bool:
        """Return whether TF32 is still forbidden, and would make a kept node faster."""
        nodes = self.planner.case.network.nodes()
        products = (n for n in nodes if is_standard(n, *TENSOR_CORE_OPS))
        return not self.measure.engine_settings.tf32 and any(node_name(n) in keep for n in products)

    def wider(self, keep: Assignment) -> Iterable[tuple[str, Assignment]]:
        """Return wider islands around a kept set, which break fewer fusions, smallest first."""
        return self._allowed(wider(self.planner.case.network, self.planner.roles, keep))

    def _allowed(self, found: Iterable[tuple[str, Assignment]]) -> list[tuple[str, Assignment]]:
        """Return the sets that obey the user's rules."""
        return [(name, keep) for name, keep in found if self._is_allowed(keep)]

    def _is_allowed(self, keep: Assignment) -> bool:
        return self.ruled <= keep and not keep & frozenset(self.planner.forced.lowered)

    def _departure(self, failed: Candidate) -> Departure | None:
        """Examine the engine, within the budget; the last build is reserved for the result."""
        rounds = min(LOCALISING, self.budget.left - 1)
        if rounds < 1:
            return None
        rewritten, _ = self.planner.rewrite(failed.keep)
        settings = self.planner.settings
        try:
            sample = self._worst_sample(failed)
        except ENGINE_FAULTS:
            return None

        def run_marked(names: Sequence[TensorName]) -> Outputs | None:
            return self._marked(failed, sample, names)

        return localise(
            self.planner.case.network,
            self.planner.roles,
            emulate_typed(rewritten.model, accumulate=settings.accumulate),
            sample,
            run_marked,
            rounds=rounds,
            runtime=settings.runtime,
        )

    def _marked(
        self, failed: Candidate, sample: Sample, names: Sequence[TensorName]
    ) -> Outputs | None:
        """Build the plan with tensors marked; return its outputs, None without any.

        A note says if marking made it a different engine.
        """
        self.budget.take()
        build = self.attempts.marked(failed.plan, names)
        if build.engine is None or failed.build.engine is None:
            return None
        try:
            marked = self.measure.run(build.engine, sample)
            plain = self.measure.run(failed.build.engine, sample)
        except ENGINE_FAULTS:
            return None
        change = max((finite_relative_rms(plain[n], marked[n]) for n in plain), default=0.0)
        if change > NOISE:
            self.bench.notes.append(
                f"marking tensors changed the final outputs by {number(change)}: the inspected "
                "engine is not quite the one without marks"
            )
        return marked

    def _worst_sample(self, failed: Candidate) -> Sample:
        """Return the calibration sample with the engine's largest error."""
        assert failed.build.engine is not None
        trials = self.planner.trials
        errors = [
            max(
                (finite_relative_rms(reference[name], found[name]) for name in reference),
                default=0.0,
            )
            for reference, found in zip(
                trials.references,
                self.measure.outputs(failed.build.engine, trials.samples),
                strict=True,
            )
        ]
        return trials.samples[errors.index(max(errors))]
