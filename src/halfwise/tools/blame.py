"""Which parts of a quantised model its error comes from: what is left without each quantisation.

A part is a node with the Q/DQ pairs of its result and of its weights, or an input with its pairs.
Groups of parts are quantised alone, and what adds most is halved (`rankings`); then the worst are
left out of the whole. So a few runs on the worst samples say it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from math import isfinite

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from halfwise.case import FEW_SAMPLES, Case, Sample, Samples, Settings
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import ModelRunner
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import HalfwiseError, RunFailed
from halfwise.fixing.bench import Bench, Tolerance
from halfwise.fixing.plan.plan import Nodes
from halfwise.fixing.plan.search import rankings, stretches
from halfwise.graph.conversion import upcast
from halfwise.graph.excluding import without_pairs
from halfwise.graph.model import Network, is_standard, node_name, tensor_name
from halfwise.graph.qoperators import as_pairs
from halfwise.graph.quantised import Pair, keeps_nothing, pairs_of
from halfwise.graph.reading import moves
from halfwise.judging.judge import worst_first
from halfwise.metrics import Outputs
from halfwise.metrics.slices import Group, constant_slices
from halfwise.progress import Watcher
from halfwise.records import MOST, Blame, Blamed, Flat, Joined, NodeName, TensorName, replace
from halfwise.wording import FEW

MOST_GROUPS = 24
"""Groups of parts at most: one cause among 500 takes 14, each more about 6. Our choice."""
NEARLY_ALL = 0.95
"""Once this share of the error is removed, no more parts are left out. Our choice."""
LITTLE = 0.02
"""A part that removes no more than this share of the error is not named. Our choice."""


def parts_of(network: Network) -> Mapping[NodeName, tuple[Pair, ...]]:
    """Return the pairs of each part of a quantised model and its bodies, in graph order.

    A result's pairs include those behind moves of it. A part is named after its node, or its input.
    """
    pairs = pairs_of(network, inner=True)
    behind = {pair.dequantise.outputs[0]: pair.source for pair in pairs}
    parts: dict[NodeName, list[Pair]] = {}
    for pair in pairs:
        value = pair.source
        while value is not None and (source := _before(value, behind)) is not value:
            value = source
        maker = None if value is None else value.producer()
        if maker is None and (value is None or value.const_value is not None):
            maker = next((node for node, _ in pair.readers), None)
        if maker is not None:
            parts.setdefault(node_name(maker), []).append(pair)
        elif value is not None:
            parts.setdefault(NodeName(str(value.name)), []).append(pair)
    return {name: tuple(pairs) for name, pairs in parts.items()}


def _before(value: ir.Value, behind: Mapping[ir.Value, ir.Value | None]) -> ir.Value | None:
    """Return the tensor of which `value` is a quantised or moved form; itself if there is none."""
    if value in behind:
        return behind[value]
    maker = value.producer()
    return maker.inputs[0] if maker is not None and moves(maker) else value


class _LeftOut(Struct):
    """Runs a quantised model with some of its parts left out."""

    network: Network
    original: Network
    parts: Mapping[NodeName, tuple[Pair, ...]]
    settings: Settings
    _loaded: tuple[Nodes, Session] | None = None

    def written(self, plan: Nodes) -> ir.Model:
        """Return the model without these parts' pairs."""
        pairs = {node_name(pair.dequantise) for name in plan for pair in self.parts[name]}
        return without_pairs(self.network, pairs, self.original).model

    def prepare(self, plan: Nodes, /) -> None:
        """Load the model without these parts' pairs."""
        if self._loaded is None or self._loaded[0] != plan:
            self._loaded = None  # two sessions at once would need more memory
            model = emulate_typed(self.written(plan), accumulate=self.settings.accumulate)
            self._loaded = plan, Session(model, runtime=self.settings.runtime)

    def run(self, sample: Sample, plan: Nodes, /) -> Outputs:
        """Return the outputs without these parts' pairs."""
        self.prepare(plan)
        assert self._loaded is not None
        return self._loaded[1].run(sample)

    def release(self) -> None:
        """Free the session."""
        self._loaded = None


def blame(
    candidate: Network,
    case: Case,
    references: Sequence[Outputs],
    settings: Settings,
    watcher: Watcher,
    worst: Sequence[int] = (),
) -> Blame | None:
    """Return which parts of a quantised model its error comes from; None if it has no pairs.

    Args:
        candidate: The quantised model, with the case's outputs; a QOperator file, too.
        case: The model before quantisation, the samples and what is allowed.
        references: Its outputs on each sample.
        settings: Where to run.
        watcher: Receives progress.
        worst: Indices of samples, those with the largest error first; found if not given.
    """
    whole = as_pairs(upcast(candidate)[0])
    judge = _LeftOut(whole, case.network, parts_of(whole), settings)
    bench = Bench(judge, case.calibration, references, Tolerance(case.criterion, case.metric))
    try:
        return _blamed(judge, bench, watcher, worst) if judge.parts else None
    except HalfwiseError as error:
        watcher.note(f"where the error comes from is unknown ({error.message})")
        return None


def _blamed(
    judge: _LeftOut, bench: Bench[Nodes], watcher: Watcher, worst: Sequence[int]
) -> Blame | None:
    everything, nothing = frozenset(judge.parts), Nodes()
    worst = (worst or worst_first(bench.survey(nothing, watcher)))[:FEW_SAMPLES]

    @cache
    def error(left_out: Nodes) -> float:
        """Return the largest error with some parts left out."""
        watcher.step(bench.evaluations, 2 * MOST_GROUPS, "trials")
        return max(bench.contributions(left_out, worst))

    def removed(left_out: Nodes) -> float:
        """Return the share of the error that goes with some parts; 0 to 1."""
        left = error(left_out)
        return max(0.0, 1 - left / before if isfinite(before) else float(isfinite(left)))

    before = error(nothing)
    if before == 0:
        return None
    names = {name: place for place, name in enumerate(judge.parts)}
    ops = {node_name(node): node.op_type for node in judge.network.graph.all_nodes()}
    found, left = list[Blamed](), nothing
    if removed(everything) >= MOST:
        groups, alone = stretches(list(names)), lambda nodes: error(everything - nodes)
        *_, ranking = rankings(groups, alone, None, MOST_GROUPS)
        for group, _ in ranking[: -FEW - 1 : -1]:
            if removed(left) < NEARLY_ALL and removed(left | group) - removed(left) > LITTLE:
                left |= group
                nodes = tuple(sorted(group, key=names.__getitem__))
                one = Blamed(nodes=nodes, error=error(group), share=removed(group))
                if len(nodes) == 1:
                    joined = _joined(judge, everything, bench.samples.select(worst), nodes[0])
                    one = replace(one, op=ops.get(nodes[0], ""), joined=joined)
                found.append(one)
    watcher.step(1, 1)
    return Blame(
        parts=len(names),
        samples=len(worst),
        error=before,
        bare=error(everything),
        left_out=tuple(sorted(found, key=lambda one: -one.share)),
        together=error(left),
        share=removed(left),
        flat=tuple(_flat(judge, bench.samples, bench.references, worst)),
        by_metric=bench.tolerance.metric is not None,
    )


def _joined(judge: _LeftOut, everything: Nodes, samples: Samples, name: NodeName) -> Joined | None:
    """Return that a Concat's scale leaves nothing of what it joins; None for other nodes."""
    bare = judge.written(everything)
    node = next((node for node in bare.graph if node_name(node) == name), None)
    scales = [pair.scale for pair in judge.parts[name] if pair.source is not None]
    if node is None or not is_standard(node, "Concat") or not scales or scales[0].size != 1:
        return None
    peaks = {tensor_name(value): 0.0 for value in node.inputs if value is not None}
    for tensors in ModelRunner(bare, samples, runtime=judge.settings.runtime).get(list(peaks)):
        for tensor, array in tensors.items():
            largest = float(np.abs(array).max(initial=0))
            peaks[TensorName(tensor)] = max(peaks[TensorName(tensor)], largest)
    least, most = (pick(peaks, key=peaks.__getitem__) for pick in (min, max))
    scale = float(scales[0].item())
    if not keeps_nothing(peaks[least], scale):
        return None
    numbers = {"scale": scale, "largest": peaks[least], "most": peaks[most]}
    return Joined(tensor=least, beside=most, **numbers)


def _flat(
    judge: _LeftOut, samples: Samples, references: Sequence[Outputs], worst: Sequence[int]
) -> Iterator[Flat]:
    """Yield what is constant in the outputs although the reference varies."""
    with suppress(RunFailed):
        results = [judge.run(samples[i], Nodes()) for i in worst]
        for name in map(TensorName, references[0]):
            expected = [references[i][name] for i in worst]
            flat = constant_slices(expected, [outputs[name] for outputs in results])
            if flat is not None:
                axis, slices, varies = flat
                ranges, size = Group(axis, slices, varies, 1.0).ranges(), expected[0].shape[axis]
                facts = {"slices": slices.size, "of": size, "varies": varies}
                yield Flat(output=name, axis=axis, ranges=ranges, **facts)
