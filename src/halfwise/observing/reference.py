"""Run the FP32 reference twice: once over all samples for extrema, once over few for elements."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.case import CPU, Runtime, Samples
from halfwise.emulation.budget import Budget, Work
from halfwise.emulation.probe import ElementProbe, ExtremaProbe, View, observable, roots
from halfwise.errors import BuildFailed, CaseError
from halfwise.formats import Format
from halfwise.graph.casts import adjusted_constants
from halfwise.graph.model import Network, node_name, tensor_name
from halfwise.graph.roles import Roles
from halfwise.observing.inner import InnerNumbers, squares, views, with_sums
from halfwise.observing.roundoff import with_roundoff
from halfwise.observing.statistics import DetailCounter
from halfwise.records import Detail, Observation, Observations, TensorName

DETAIL_ELEMENTS = 2 * 10**9
"""How many elements the second pass visits at most, over all samples and tensors."""

ROUNDOFF_SAMPLES = 4
"""Samples on which rounding errors are measured: they follow from the model more than from data."""

PART_OF_BUDGET = 0.5
"""How much of the budget all but the extrema may take; the rest is for the search."""


@dataclass
class _Reach:
    """What one tensor reached so far."""

    absmax: float = 0.0
    nonfinite: int = 0
    worst_sample: int = 0


def observe(
    network: Network,
    samples: Samples,
    fmt: Format,
    *,
    roles: Roles,
    runtime: Runtime = CPU,
    detail_samples: int = 32,
    progress: Callable[[int, int], None] | None = None,
    budget: Budget | None = None,
) -> tuple[Observations, list[dict[str, NDArray[Any]]]]:
    """Return what the FP32 model looks like on `samples`, and its outputs on each.

    Extrema and squares come from all samples, roundoff from at most `ROUNDOFF_SAMPLES`. Element
    statistics, sums, cancellation and margins come from at most `detail_samples`: up to half of
    them those where most tensors reach their extremum, the others evenly spread; fewer where more
    than 2·10⁹ elements would be visited.

    Args:
        network: The model.
        samples: At least one.
        fmt: The low format that thresholds and margins refer to.
        roles: Role per node; the inside of an op is observed where the node may be low.
        runtime: Where it runs.
        detail_samples: 0 leaves out everything but extrema and squares.
        progress: Called as `progress(steps done, steps in all)`; the latter may shrink.
        budget: Ends all but extrema and squares when `PART_OF_BUDGET` of it is spent. Sums and
            roundoff are then those of the samples so far, and there are no element statistics.

    Returns:
        The observations, and per sample the outputs by name, bit for bit those of a plain run.

    Raises:
        CaseError: There are no samples, or ONNX Runtime cannot load the model.
        BackendMissing: `device` is not available.
        BuildFailed: ONNX Runtime cannot load what is added to measure it: a fault of halfwise.
        RunFailed: ONNX Runtime failed on a sample.
    """
    if not len(samples):
        raise CaseError("There are no samples to observe.", "Give at least one input.")
    budget = budget or Budget()
    observer = _Observer(network, samples, fmt, roles, runtime)
    observer.steps = len(samples) + 2 * min(detail_samples, len(samples))
    observer.progress, observer.check, observer.spend = progress, budget.check, budget.spend
    outputs = observer.extrema()
    observer.squares()
    details: dict[TensorName, Detail] = {}
    if detail_samples > 0:
        closely = partial(observer.closely, detail_samples)
        details = budget.within("observe", closely, details, PART_OF_BUDGET)
    return observer.records(details), outputs


def choose_samples(extrema: Sequence[tuple[float, int]], samples: int, count: int) -> list[int]:
    """Return the samples to look at closely, in ascending order.

    Args:
        extrema: Per tensor, its largest magnitude and the sample that holds it.
        samples: How many samples there are.
        count: How many to choose, 1 ≤ count ≤ samples.

    Returns:
        `count` different indices: up to half of them (rounded up) those that hold the extremum of
        most tensors, the larger extremum first where they tie; the others evenly spread.
    """
    held = Counter(sample for absmax, sample in extrema if absmax > 0)
    largest = {s: max(a for a, sample in extrema if sample == s) for s in held}
    ranked = sorted(held, key=lambda s: (-held[s], -largest[s], s))
    worst = ranked[: (count + 1) // 2]
    others = [s for s in range(samples) if s not in worst]
    at = np.linspace(0, max(len(others) - 1, 0), count - len(worst)).round().astype(int)
    return sorted([*worst, *(others[i] for i in at)])


class _Observer:
    """One observation in progress: what is known so far, and the passes that add to it."""

    def __init__(
        self,
        network: Network,
        samples: Samples,
        fmt: Format,
        roles: Roles,
        runtime: Runtime,
    ) -> None:
        self.network, self.samples, self.fmt, self.roles = network, samples, fmt, roles
        self._runtime = runtime
        self.reach = {t: _Reach() for t in observable(network.model)}
        self.inner = InnerNumbers()
        self.largest_sample = 0
        self.steps = self._done = 0
        self.progress: Callable[[int, int], None] | None = None
        self.check: Callable[[], None] = lambda: None
        self.spend: Callable[[Work], None] = lambda _: None

    def extrema(self) -> list[dict[str, NDArray[Any]]]:
        """Find the extrema over all samples; return the outputs per sample."""
        probe = ExtremaProbe(self.network.model, tuple(self.reach), runtime=self._runtime)
        outputs = []
        most = -1
        for index, sample in enumerate(self.samples):
            results, extrema = probe.run(sample)
            outputs.append(results)
            for name, extremum in extrema.items():
                reach = self.reach[name]
                reach.nonfinite += extremum.nonfinite
                if extremum.absmax > reach.absmax:
                    reach.absmax, reach.worst_sample = extremum.absmax, index
            if (size := sum(np.size(a) for a in sample.values())) > most:
                most, self.largest_sample = size, index
            self._tick()
        return outputs

    def closely(self, most: int) -> dict[TensorName, Detail]:
        """Look inside on at most so many samples; return the details."""
        samples = self.samples
        elements = ElementProbe(self.network.model, runtime=self._runtime)
        sizes = elements.sizes(samples[self.largest_sample], tuple(self.reach))
        affordable = max(1, DETAIL_ELEMENTS // max(1, sum(sizes.values())))
        chosen = choose_samples(
            [(r.absmax, r.worst_sample) for r in self.reach.values()],
            len(samples),
            min(most, len(samples), affordable),
        )
        self.steps = len(samples) + 2 * len(chosen)
        self.sums(chosen)
        self.roundoff(chosen[:: ceil(len(chosen) / ROUNDOFF_SAMPLES)])
        return self.elements(chosen, elements, sizes)

    def squares(self) -> None:
        """Derive squares from the extrema."""
        absmax = {name: (r.absmax, r.worst_sample) for name, r in self.reach.items()}
        for node, value, sample in squares(self.network, self.roles, absmax):
            self.inner.add(node, "square", value, sample)

    def sums(self, chosen: Sequence[int]) -> None:
        """Find what running sums can reach, on the chosen samples."""
        model, sums = with_sums(self.network, self.roles)
        probe = self._measuring(model, sums) if sums else None
        for index in chosen:
            if probe:
                for name, extremum in probe.run(self.samples[index])[1].items():
                    self.inner.add(sums[name], "sum", extremum.absmax, index)
            self._tick()

    def roundoff(self, chosen: Sequence[int]) -> None:
        """Find the relative errors that rounding gives what is read to its own scale."""
        model, errors = with_roundoff(self.network, self.roles, self.fmt)
        if not errors:
            return
        probe = self._measuring(model, errors)
        for index in chosen:
            for name, extremum in probe.run(self.samples[index])[1].items():
                self.inner.add(errors[name], "roundoff", extremum.absmax, index)

    def _measuring(self, model: ir.Model, tensors: Iterable[TensorName]) -> ExtremaProbe:
        """Load a model with additions; the plain one has been loaded, so they are at fault."""
        try:
            return ExtremaProbe(model, tuple(tensors), runtime=self._runtime)
        except CaseError as error:
            raise BuildFailed(
                f"What is added to the model to measure it does not load: {error.message}",
                "This is a fault of halfwise; please report it with the model's operators and "
                "opset.",
            ) from error

    def elements(
        self, chosen: Sequence[int], probe: ElementProbe, sizes: Mapping[TensorName, int]
    ) -> dict[TensorName, Detail]:
        """Visit the elements of every tensor on the chosen samples; return the details."""
        root = roots(self.network.model.graph, tuple(self.reach))
        counters = {name: DetailCounter(self.fmt) for name in dict.fromkeys(root.values())}
        inner = views(self.network, self.roles, self.fmt, self.inner, chosen)

        def counting(name: TensorName) -> View:
            def count(_: int, array: NDArray[Any]) -> None:
                self.check()
                counters[name].add(array)

            return View((name,), count)

        computed = {tensor_name(v) for n in self.network.nodes() for v in n.outputs if v.name}
        ordered = [counting(name) for name in counters if name not in computed]
        for node in self.network.nodes():
            if (name := node_name(node)) in inner:
                ordered.append(inner[name])
            outputs = (tensor_name(v) for v in node.outputs if v.name)
            ordered += [counting(t) for t in outputs if t in counters]
        ordered.append(View((), lambda _: self._tick()))
        probe.run(self.samples.select(chosen), ordered, sizes)
        details = {name: counter.detail(len(chosen)) for name, counter in counters.items()}
        return {name: details[root[name]] for name in self.reach}

    def records(self, details: Mapping[TensorName, Detail]) -> Observations:
        """Return what was observed."""
        producers = {tensor_name(v): n for n in self.network.nodes() for v in n.outputs if v.name}
        return Observations(
            tensors=tuple(
                Observation(
                    tensor=name,
                    producer=node_name(producers[name]) if name in producers else None,
                    op=producers[name].op_type if name in producers else "",
                    absmax=reach.absmax,
                    nonfinite=reach.nonfinite,
                    worst_sample=reach.worst_sample,
                    detail=details.get(name),
                )
                for name, reach in self.reach.items()
            ),
            inner=self.inner.records(self.network),
            samples=self.samples.ids,
            constants=adjusted_constants(self.network, self.roles, frozenset(), self.fmt),
        )

    def _tick(self) -> None:
        self.spend("pass")
        self._done += 1
        if self.progress:
            self.progress(self._done, self.steps)
