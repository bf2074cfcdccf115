"""Which Q/DQ pairs make a quantised model's outputs wrong: leaving them out mends the outputs."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush
from math import inf

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.case import CPU, Runtime, Sample, Samples, Settings
from halfwise.emulation.budget import Budget
from halfwise.emulation.ort import Session
from halfwise.emulation.probe import ElementProbe, View
from halfwise.emulation.rounding import new_node
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.bench import Bench, Tolerance
from halfwise.graph.excluding import RawInputs, excluding
from halfwise.graph.model import Network, constant_array, node_name, tensor_name
from halfwise.graph.quantised import Pair, pairs_of, small_channels
from halfwise.graph.weights import pieces
from halfwise.metrics import Metric, Outputs
from halfwise.observing import DETAIL_SAMPLES
from halfwise.progress import Silent, Watcher
from halfwise.records import (
    Criterion,
    NodeName,
    PairFault,
    PairLoss,
    QuantisationLoss,
    RangeFault,
    Right,
    TensorName,
)


@dataclass(frozen=True, eq=False)
class Site:
    """Pairs that quantise one tensor alike and are left out together; each reader may have its own.

    Attributes:
        name: The DequantizeLinear of the first pair.
        pairs: All pairs of the site.
    """

    name: NodeName
    pairs: tuple[Pair, ...]

    @property
    def pair(self) -> Pair:
        """The first pair."""
        return self.pairs[0]

    @property
    def tensor(self) -> TensorName:
        """The quantised tensor; for stored integers, the dequantised one."""
        source = self.pair.source
        return tensor_name(self.pair.dequantise.outputs[0] if source is None else source)

    @property
    def readers(self) -> tuple[ir.Node, ...]:
        """Nodes that read the pairs, each once."""
        return tuple(dict.fromkeys(node for pair in self.pairs for node, _ in pair.readers))


def sites_of(network: Network, original: Network | None = None) -> tuple[Site, ...]:
    """Return the pairs that can be left out, in graph order.

    Stored integers can be left out if there is an original to take weights from. Tensors that are
    dequantised to a type other than the one they were quantised from cannot.
    """
    groups: dict[object, list[Pair]] = {}
    for pair in pairs_of(network):
        output = pair.dequantise.outputs[0]
        if pair.source is None and original is None:
            continue
        if pair.source is not None and pair.source.dtype != output.dtype:
            continue
        layout = (pair.scale.tobytes(), pair.zero_point.tobytes(), pair.axis, pair.block)
        key = output if pair.source is None else (pair.source, pair.dtype, layout)
        groups.setdefault(key, []).append(pair)
    return tuple(Site(node_name(p[0].dequantise), tuple(p)) for p in groups.values())


class BypassRunner:
    """A quantised model in ONNX Runtime, with any of its sites left out or rescaled.

    Attributes:
        sites: The sites that can be left out.
        foreign: Stored integers that are not rounded floats of the original.
    """

    def __init__(
        self,
        network: Network,
        original: Network | None = None,
        *,
        accumulate: str = "fp32",
        runtime: Runtime = CPU,
    ) -> None:
        """Load the model; raises as `Session` does.

        Args:
            network: The quantised model; not changed.
            original: The model before quantisation, for its weights.
            accumulate: As for `emulate_typed`, which emulates the model's FP16 and BF16 parts.
            runtime: Where it runs.
        """
        copy = replace(network, model=network.copy())
        self.sites = sites_of(network, original)
        self._scales: dict[NodeName, np.ndarray] = {}
        raw = RawInputs(copy, original)
        twins = {node_name(pair.dequantise): pair for pair in pairs_of(copy)}
        for number, site in enumerate(self.sites):
            self._switch([twins[node_name(p.dequantise)] for p in site.pairs], site, number, raw)
        foreign = {node_name(pair.dequantise) for pair in raw.foreign}
        self.foreign = tuple(site.tensor for site in self.sites if site.name in foreign)
        self._numbers = {site.name: number for number, site in enumerate(self.sites)}
        model = emulate_typed(copy.model, accumulate=accumulate)
        self._session = Session(model, runtime=runtime)

    def prepare(self, left_out: frozenset[NodeName]) -> None:
        """Do nothing: one session runs everything."""

    def release(self) -> None:
        """Do nothing: the session is as large as the model."""

    def run(
        self,
        sample: Sample,
        left_out: Iterable[NodeName] = (),
        factors: Mapping[NodeName, float] | None = None,
    ) -> Outputs:
        """Return the outputs with some sites left out.

        Args:
            sample: The inputs.
            left_out: Names of sites.
            factors: Factors by which to multiply the scales of other sites that have one scale.

        Raises:
            RunFailed: as `Session.run`.
        """
        gone, factors = set(left_out), factors or {}
        flags = {_flag(n): np.asarray(name in gone) for name, n in self._numbers.items()}
        scales = {
            _scale(self._numbers[name]): np.asarray(scale * factors.get(name, 1.0), scale.dtype)
            for name, scale in self._scales.items()
        }
        return self._session.run({**sample, **flags, **scales})

    def _switch(self, pairs: list[Pair], site: Site, number: int, raw: RawInputs) -> None:
        graph = raw.network.graph
        flag = ir.val(_flag(number), ir.DataType.BOOL, ir.Shape([]))
        graph.inputs.append(flag)
        scale = self._rescalable(pairs, site, number)
        for place, pair in enumerate(pairs):
            node = pair.dequantise
            output, name = node.outputs[0], tensor_name(node.outputs[0])
            output.name = f"{name}::quantised"
            assert output.dtype is not None
            chosen = new_node(
                "Where", [flag, raw.before(pair), output], f"{name}::{place}", dtype=output.dtype
            )
            graph.insert_after(node, chosen)
            output.replace_all_uses_with(chosen.outputs[0], replace_graph_outputs=True)
            chosen.replace_input_with(2, output)
            chosen.outputs[0].name, chosen.outputs[0].shape = name, output.shape
            for end in (pair.quantise, node) if scale is not None else ():
                assert end is not None
                end.replace_input_with(1, scale)
        if scale is not None:
            graph.inputs.append(scale)

    def _rescalable(self, pairs: list[Pair], site: Site, number: int) -> ir.Value | None:
        """Return a graph input for the pairs' scale; None for weights and for several scales."""
        scale = pairs[0].dequantise.inputs[1]
        if pairs[0].source is None or pairs[0].axis is not None or scale is None:
            return None
        assert scale.const_value is not None
        self._scales[site.name] = np.asarray(scale.const_value.numpy())
        return ir.val(_scale(number), scale.dtype, scale.shape)


def _flag(number: int) -> str:
    return f"halfwise::raw_{number}"


def _scale(number: int) -> str:
    return f"halfwise::scale_{number}"


RARE = 1e-3
"""Share of values that may be outliers; one value always may."""
CLIPPED = 0.5
"""Share of a pair's squared error due to clipping from which the pair counts as saturated."""
WIDE = 4
"""A range that is this many times what values reach wastes two of its eight bits."""
_SHIFT = 18
"""Low bits of binary32 that bins ignore: sign, exponent and 5 of the 23 fraction bits remain."""


@dataclass(frozen=True)
class Reach:
    """Effect of a pair on the values that it was seen with.

    Attributes:
        beyond: Share of values more than half a step beyond the ends of the pair's type.
        clipped: Share of the pair's squared error that comes from those values.
        ends: Ends of the pair's range, lower first; zeros if it has many scales.
        largest: Largest finite magnitude; in steps if the pair has many scales.
        usual: Magnitude that all values but a share of `RARE`, or all but one, stay below, within
            3 %; in steps like `largest`.
        even: Whether the levels are equally spaced; levels of floats are finer toward zero.
    """

    beyond: float
    clipped: float
    ends: tuple[float, float]
    largest: float
    usual: float
    even: bool

    @property
    def limit(self) -> float:
        """The end of its range that is further from zero; 0 if it has many scales."""
        return max(-self.ends[0], self.ends[1])

    @property
    def fault(self) -> RangeFault | None:
        """What is wrong with the range; None if nothing is, or if it has many scales.

        A float's steps shrink with its values, so none of its range is wasted.
        """
        if self.beyond and self.clipped >= CLIPPED:
            return "saturated"
        if not self.even or not self.limit or self.limit < WIDE * self.usual:
            return None
        return "outlier" if self.limit < WIDE * self.largest else "wide"

    @property
    def rescale(self) -> float | None:
        """Factor on the scale by which the range ends where values do; outliers do not count.

        None if nothing is wrong with the range, for floats of 8 bits or less, and for zeros only.
        """
        if self.fault is None or not self.even or not self.limit:
            return None
        return (self.usual if self.fault == "outlier" else self.largest) / self.limit or None


class Counter:
    """Counts the values that a pair quantises, in steps from zero."""

    def __init__(self, pair: Pair) -> None:
        """Start with no values."""
        self._pair = pair
        self._step = float(pair.scale) if pair.axis is None else 0.0
        self._is_even = not pair.dtype.is_floating_point()
        kind = (ml_dtypes.iinfo if self._is_even else ml_dtypes.finfo)(pair.dtype.numpy())
        self._low = float(kind.min) - float(pair.zero_point.min())
        self._high = float(kind.max) - float(pair.zero_point.max())
        self._counts = np.zeros(1 << (32 - _SHIFT), np.int64)
        self._elements = self._beyond = 0
        self._largest = self._rounding = self._clipping = 0.0

    def add(self, _: int, array: NDArray[np.generic]) -> None:
        """Count f[*shape] of a sample; non-finite values count only as elements."""
        self._elements += array.size
        for piece in pieces(np.asarray(array, np.float32) / self._pair.steps(array.shape)):
            steps = piece[np.isfinite(piece)]
            if self._low == 0:  # values below are cut off on purpose, as by a Relu
                steps = np.maximum(steps, 0.0)
            past = steps - np.clip(steps, self._low, self._high)
            outside = np.abs(past) > 0.5
            sizes = np.abs(steps)
            self._beyond += int(np.count_nonzero(outside))
            self._largest = max(self._largest, float(sizes.max(initial=0.0)))
            self._clipping += float(np.sum(past[outside] ** 2, dtype=np.float64))
            if self._is_even:
                off = (steps - np.rint(steps))[~outside]
                self._rounding += float(np.sum(off**2, dtype=np.float64))
            bins = np.right_shift(sizes.view(np.uint32), _SHIFT).astype(np.intp)
            self._counts += np.bincount(bins, minlength=self._counts.size)

    def reach(self) -> Reach:
        """Return the effect of the pair; zeros if there were no values."""
        squares, step = self._rounding + self._clipping, self._step or 1.0
        return Reach(
            beyond=self._beyond / max(self._elements, 1),
            clipped=self._clipping / squares if squares else 0.0,
            ends=(self._step * self._low, self._step * self._high),
            largest=self._largest * step,
            usual=self._usual() * step,
            even=self._is_even,
        )

    def _usual(self) -> float:
        at_least = np.cumsum(self._counts[::-1])[::-1]
        common = np.flatnonzero(at_least > max(1, RARE * self._elements))
        if not common.size:
            return self._largest
        middle = np.uint32((int(common[-1]) << _SHIFT) + (1 << (_SHIFT - 1)))
        return min(float(middle.view(np.float32)), self._largest)


def reaches(
    network: Network, pairs: Sequence[Pair], samples: Samples, *, runtime: Runtime = CPU
) -> list[Reach]:
    """Return the effect of a quantised model's pairs on the floats before them, in order.

    Args:
        network: The quantised model.
        pairs: Pairs of it that have a source.
        samples: Samples to run; constants need none.
        runtime: Where it runs.

    Raises:
        RunFailed: as for `ElementProbe`.
    """
    counters = [Counter(pair) for pair in pairs]
    views: list[View] = []
    for pair, counter in zip(pairs, counters, strict=True):
        assert pair.source is not None
        if pair.source.const_value is not None:
            counter.add(0, constant_array(pair.source))
        else:
            views.append(View((tensor_name(pair.source),), counter.add))
    if views and len(samples):
        probe = ElementProbe(network.model, runtime=runtime)
        names = dict.fromkeys(name for view in views for name in view.tensors)
        probe.run(samples, views, probe.sizes(samples[0], list(names)))
    return [counter.reach() for counter in counters]


MOST_CAUSES = 8
"""Largest number of pairs reported as causes: if more must go, 8 bits are too few."""
_MOST_TRIALS = 128
"""Trials of halves: 8 pairs among 500 take about 100."""


@dataclass(frozen=True)
class Question:
    """A quantised model whose outputs are not acceptable.

    Attributes:
        network: The quantised model.
        original: The model before quantisation; None if unknown: then the weights stay.
        samples: Samples it was judged on.
        references: Right outputs of each sample.
        criterion: Criterion for acceptable outputs.
        metric: Task metric; decides alone if given.
        accumulate: Format of running sums inside low ops.
        runtime: Where it runs.
        right: Source of the references.
        watcher: Receives progress.
        budget: Ends the search for pairs; what three runs over the samples show is exempt.
    """

    network: Network
    original: Network | None
    samples: Samples
    references: Sequence[Outputs]
    criterion: Criterion
    metric: Metric | None = None
    accumulate: str = "fp32"
    runtime: Runtime = CPU
    right: Right = "original"
    watcher: Watcher = field(default_factory=Silent)
    budget: Budget = field(default_factory=Budget)

    @cached_property
    def runner(self) -> BypassRunner:
        """Runs the model with any set of pairs left out."""
        return BypassRunner(
            self.network, self.original, accumulate=self.accumulate, runtime=self.runtime
        )

    @cached_property
    def bench(self) -> "Bench[frozenset[NodeName]]":
        """Evaluates which pairs may stay: a plan is a set of those left out."""
        return Bench(
            self.runner,
            self.samples,
            self.references,
            Tolerance(self.criterion, self.metric),
            lambda: self.budget.spend("trial"),
        )


def allowance(settings: Settings, samples: Samples) -> Budget:
    """Return the budget of a search over these samples: that of `fix`."""
    return Budget(settings.time_budget, work=settings.budget * len(samples))


def quantisation_loss(question: Question) -> QuantisationLoss | None:
    """Return the pairs to leave out for acceptable outputs.

    With all other pairs left out, tries halves of the pairs on the worst sample, then halves of the
    more harmful half, to find those that do most harm alone. As many of these as possible are put
    back; each of the rest is needed and a cause. If these do not suffice, the causes are pairs with
    a fault that make most of the error.

    Returns:
        None if no pair can be left out, or if ONNX Runtime cannot run that model, perhaps for lack
        of memory: the verdict stands without.
    """
    with suppress(CaseError, RunFailed):
        if sites := {site.name: site for site in question.runner.sites}:
            question.watcher.stage("quantisation")
            return _loss(question, sites)
    return None


def _loss(question: Question, sites: Mapping[NodeName, Site]) -> QuantisationLoss:
    bench, every = question.bench, frozenset(sites)
    errors = bench.survey(frozenset(), question.watcher)
    loss = QuantisationLoss(
        pairs=len(sites),
        error=bench.excess(frozenset()),
        without_all=bench.excess(every),
        explained=bench.evaluate(every).passed,
        right=question.right,
    )
    if not loss.explained:
        return loss.model_copy(update={"foreign": question.runner.foreign})
    if bench.evaluate(frozenset()).passed:
        return loss.model_copy(update={"needed": 0, "without": loss.error})
    alone: dict[NodeName, float] = {}

    def search() -> dict[str, object]:
        _find_gravest(alone, [*sites], every, bench)
        worst = sorted(range(len(errors)), key=lambda i: -errors[i])[:DETAIL_SAMPLES]
        return _caused(alone, _described([*sites.values()], worst, question), question)

    cut = question.budget.within("search", search, {"cut": True})
    gravest = tuple(sites[name].tensor for name in alone)
    return loss.model_copy(update={"gravest": gravest, **cut})


def _caused(
    alone: Mapping[NodeName, float], losses: Mapping[NodeName, PairLoss], question: Question
) -> dict[str, object]:
    """Return the number of needed pairs, the error without them, and the causes."""
    bench, ranked = question.bench, [*alone]
    if (needed := _needed(ranked[::-1], bench)) is None:
        harm = _by_harm([n for n, loss in losses.items() if loss.fault != "rounding"], bench)
        ranked = [*harm]
        needed = _needed(ranked[::-1], bench) if ranked else None
    if needed is None:
        causes = _faulty(harm, losses, question)
        left_out = frozenset(cause.node for cause in causes) or frozenset(alone)
        return {"without": bench.excess(left_out), "causes": causes}
    gravest = [name for name in ranked if name in needed][:MOST_CAUSES]
    causes = _measured(gravest, needed, losses, question)
    return {"needed": len(needed), "without": bench.excess(needed), "causes": causes}


def _find_gravest(
    gravest: dict[NodeName, float],
    names: Sequence[NodeName],
    every: frozenset[NodeName],
    bench: Bench[frozenset[NodeName]],
) -> None:
    """Add at most `MOST_CAUSES` pairs that do most harm alone to `gravest`, with their errors."""
    waiting: list[tuple[float, int, Sequence[NodeName]]] = [(-inf, 0, names)]
    tried = 0
    while waiting and len(gravest) < MOST_CAUSES:
        error, _, group = heappop(waiting)
        if len(group) == 1:
            gravest[group[0]] = -error
            continue
        if tried >= _MOST_TRIALS:
            break
        for half in (group[: len(group) // 2], group[len(group) // 2 :]):
            tried += 1
            heappush(waiting, (-bench.contribution(every.difference(half)), tried, half))


def _needed(
    ranked: Sequence[NodeName], bench: Bench[frozenset[NodeName]]
) -> frozenset[NodeName] | None:
    """Return the pairs in `ranked`, least harmful first, that must be left out.

    None if leaving out all is not enough.
    """
    needed = frozenset(ranked)
    if not bench.evaluate(needed).passed:
        return None
    for name in ranked:
        if bench.evaluate(needed - {name}).passed:
            needed -= {name}
    return needed


def _by_harm(
    faults: Sequence[NodeName], bench: Bench[frozenset[NodeName]]
) -> dict[NodeName, float]:
    """Return the worst sample's error by pair, if of these only that pair quantises."""
    every = frozenset(faults)
    errors = {name: bench.contribution(every - {name}) for name in faults}
    return dict(sorted(errors.items(), key=lambda each: -each[1]))


def _faulty(
    harm: Mapping[NodeName, float], losses: Mapping[NodeName, PairLoss], question: Question
) -> tuple[PairLoss, ...]:
    """Return at most `MOST_CAUSES` pairs whose faults make most of the error, or none.

    Each alone at least doubles the worst sample's error without all faulty pairs.
    """
    bench = question.bench
    without_faults = bench.contribution(frozenset(harm)) if harm else 0.0
    blamed = [name for name in harm if harm[name] > 2 * without_faults][:MOST_CAUSES]
    causes = _measured(blamed, frozenset(blamed), losses, question)
    causes = tuple(cause for cause in causes if cause.fault != "rounding")
    without = bench.excess(frozenset(cause.node for cause in causes))
    return causes if 2 * without < bench.excess(frozenset()) else ()


def _described(
    sites: Sequence[Site], worst: Sequence[int], question: Question
) -> dict[NodeName, PairLoss]:
    """Return what is known about pairs without leaving them out."""
    floats = [s for s in sites if s.pair.source is not None and s.pair.has_scales]
    samples = question.samples.select(worst)
    # Behind a pair that clips, others would seem too wide.
    every = [node_name(node) for node in question.network.nodes()]
    without = excluding(question.network, every, question.original)
    seen = reaches(without, [s.pair for s in floats], samples, runtime=question.runtime)
    reach = dict(zip((site.name for site in floats), seen, strict=True))
    return {site.name: _loss_of(site, reach.get(site.name)) for site in sites}


def _measured(
    names: Sequence[NodeName],
    left_out: frozenset[NodeName],
    losses: Mapping[NodeName, PairLoss],
    question: Question,
) -> tuple[PairLoss, ...]:
    """Return the cost of pairs and of other scales; no fault if other scales do not help."""
    bench, measured = question.bench, list[PairLoss]()
    for name in names:
        loss, others = losses[name], left_out - {name}
        errors = {"restored": bench.excess(others)}
        if loss.rescale is not None:
            results = [
                question.runner.run(sample, others, {name: loss.rescale})
                for sample in question.samples
            ]
            errors["rescaled"] = bench.excess_of(results)
        loss = loss.model_copy(update=errors)
        helps = loss.rescaled is None or loss.rescaled < loss.restored
        measured.append(loss if helps else loss.model_copy(update={"fault": "rounding"}))
    return tuple(measured)


def _loss_of(site: Site, reach: Reach | None) -> PairLoss:
    """Return what is known about a pair without running the model."""
    pair = site.pair
    loss = PairLoss(
        tensor=site.tensor,
        node=site.name,
        readers=tuple(node_name(node) for node in site.readers),
        fault=_fault(site, reach),
        bits=pair.dtype.bitwidth,
        restored=0.0,
    )
    if reach is None:
        return loss
    is_one = pair.axis is None and pair.source is not None and pair.source.const_value is None
    update = {
        "beyond": reach.beyond,
        "clipped": reach.clipped,
        "limit": reach.limit,
        "ends": reach.ends if reach.limit else None,
        "reach": reach.largest,
        "usual": reach.usual,
        "rescale": reach.rescale if is_one and loss.fault == reach.fault else None,
    }
    return loss.model_copy(update=update)


def _fault(site: Site, reach: Reach | None) -> PairFault:
    if not all(pair.has_scales for pair in site.pairs):
        return "scale"
    slots = [(node, slot) for each in site.pairs for node, slot in each.readers]
    if any(small_channels(site.pair, node, slot) is not None for node, slot in slots):
        return "channels"
    return (reach and reach.fault) or "rounding"
