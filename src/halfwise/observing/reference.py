"""`observe`: statistics of every float tensor of the FP32 model."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Unpack

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.case import CPU, FEW_SAMPLES, Probe, Runtime, Samples, Seen
from halfwise.declarations import Inputs, Options
from halfwise.emulation.bodies import observed_bodies
from halfwise.emulation.budget import Budget
from halfwise.emulation.probe import (
    DRAWN,
    SELECTING_OPSET,
    ExtremaProbe,
    Extremum,
    View,
    observable,
    roots,
    visit_elements,
)
from halfwise.errors import BuildFailed, CaseError, RunFailed
from halfwise.formats import BF16, Format
from halfwise.graph.casts import adjusted_constants, low_type
from halfwise.graph.conversion import BF16_OPSET
from halfwise.graph.model import Network, node_name, tensor_name
from halfwise.graph.roles import Roles, roles_of
from halfwise.judging.reference import check, frozen_named
from halfwise.metrics import Outputs
from halfwise.observing.inner import (
    InnerNumbers,
    insides,
    sums,
    views,
    with_twins,
)
from halfwise.observing.statistics import DetailCounter
from halfwise.options.loading import load_asked
from halfwise.options.options import Model, bounded, understand
from halfwise.progress import Silent, Watcher
from halfwise.records import (
    Detail,
    InnerKind,
    NodeName,
    Observation,
    Observations,
    TensorName,
    replace,
)

DETAIL_ELEMENTS = 10**8
"""Largest number of elements that the second pass visits, over all samples and tensors: a third
of a second. On `FEW_SAMPLES` they may be more."""

DETAIL_SAMPLES = 32
"""Largest number of samples whose elements are visited."""

PART_OF_BUDGET = 0.5
"""Share of the budget for everything but the extrema; the rest is for the search."""


class _Reach(Struct):
    """What one tensor reached so far."""

    absmax: float = 0.0
    nonfinite: int = 0
    worst_sample: int = 0


def observe_network(
    network: Network,
    samples: Samples,
    fmt: Format,
    *,
    roles: Roles,
    runtime: Runtime = CPU,
    detail_samples: int = DETAIL_SAMPLES,
    progress: Callable[[int, int], None] | None = None,
    budget: Budget | None = None,
) -> tuple[Observations, list[Outputs]]:
    """Return statistics of the FP32 model on `samples`, and its outputs on each.

    Extrema come from all samples. Element statistics, sums, cancellation and margins
    come from at most `detail_samples`: up to half of them are those where most tensors reach their
    extremum, the others are evenly spread; fewer if more than `DETAIL_ELEMENTS` would be visited.

    Args:
        network: The model.
        samples: At least one.
        fmt: The low format that thresholds and margins refer to.
        roles: Role per node; the inside of an op is observed where the node may be low.
        runtime: Where it runs.
        detail_samples: 0 leaves out everything but extrema.
        progress: See `Observer`.
        budget: See `Observer`.

    Returns:
        The observations, and per sample the outputs by name, bit for bit those of a plain run.

    Raises:
        As for `Observer`.
    """
    observer = Observer(
        network, samples, fmt, roles, runtime=runtime, progress=progress, budget=budget
    )
    if detail_samples > 0:
        observer.look(detail_samples)
    return observer.records(), observer.outputs


def choose_samples(
    extrema: Sequence[tuple[float, int]], samples: Sequence[int], count: int
) -> list[int]:
    """Return the samples to examine closely, in ascending order.

    Args:
        extrema: Per tensor, its largest magnitude and the sample that holds it.
        samples: Indices of samples, ascending.
        count: Number to choose, from 1 to all of them.

    Returns:
        `count` different indices: up to half of them (rounded up) those that hold the extremum of
        most tensors, the larger extremum first where they tie; the others evenly spread.
    """
    held = Counter(sample for absmax, sample in extrema if absmax > 0 and sample in samples)
    largest = {s: max(a for a, sample in extrema if sample == s) for s in held}
    ranked = sorted(held, key=lambda s: (-held[s], -largest[s], s))
    worst = ranked[: (count + 1) // 2]
    others = [s for s in samples if s not in worst]
    at = np.linspace(0, max(len(others) - 1, 0), count - len(worst)).round().astype(int)
    return sorted([*worst, *(others[i] for i in at)])


class Observer:
    """Statistics of a model so far: extrema at once, the rest by `look`.

    Attributes:
        outputs: Outputs of each sample, by name, bit for bit those of a plain run.
    """

    def __init__(
        self,
        network: Network,
        samples: Samples,
        fmt: Format,
        roles: Roles,
        *,
        runtime: Runtime = CPU,
        progress: Callable[[int, int], None] | None = None,
        budget: Budget | None = None,
        late_sums: bool = False,
        seen: Seen | None = None,
    ) -> None:
        """Find extrema.

        Args:
            network: The model.
            samples: At least one.
            fmt: The low format that thresholds and margins refer to.
            roles: Role per node; the inside of an op is observed where the node may be low.
            runtime: Where it runs.
            progress: Called as `progress(steps done, steps in all)`; the latter may change.
            budget: Ends looks when `PART_OF_BUDGET` of it is spent. Sums then cover the samples so
                far, and there are no element statistics.
            late_sums: Leave sums to `look_at_sums`, where only repairs read them.
            seen: First samples that need not run again.

        Raises:
            CaseError: There are no samples, or ONNX Runtime cannot load the model.
            BackendMissing: `runtime.device` is not available.
            RunFailed: ONNX Runtime failed on a sample.
        """
        if not len(samples):
            raise CaseError("There are no samples to observe.", "Give at least one input.")
        self._network, self._samples, self._fmt, self._roles = network, samples, fmt, roles
        self._runtime, self._progress, self._late_sums = runtime, progress, late_sums
        self._budget = budget or Budget()
        self._reach = {t: _Reach() for t in observable(network.model)}
        self._roots = roots(network.model.graph, tuple(self._reach))
        self._counters = {t: DetailCounter(fmt) for t in dict.fromkeys(self._roots.values())}
        self._details: dict[TensorName, Detail] = {}
        self._inner = InnerNumbers()
        self._done = 0
        self._sizes: dict[TensorName, int] = {}
        self._drawn: dict[TensorName, int] = {}
        # As if the first look were at all: what follows the extrema would else begin at the end.
        self._steps = len(samples) + 2 * min(len(samples), DETAIL_SAMPLES)
        known = None if seen is None else seen.on(network.model, samples, self._reach)
        if seen is not None and known is None:
            seen.probe.release()  # of another model, such as one whose opset was raised
        probe = None if seen is None or known is None else seen.probe
        self.outputs = self._extrema(probe, known or ())
        self._bodies = [
            (body, Observer(body.network, body.runs, fmt, roles, runtime=runtime, budget=budget))
            for body in observed_bodies(network, samples, runtime)
        ]

    def look(self, count: int) -> None:
        """Look inside on some samples, once.

        Args:
            count: Number of samples, ≥ 1; fewer if they are large, see `choose_samples`.

        Raises:
            BuildFailed: ONNX Runtime cannot load the model with the nodes added for measuring,
                which is a bug in halfwise.
            RunFailed: ONNX Runtime failed on a sample.
        """
        for _, observer in self._bodies:
            observer.look(count)
        self._details = self._budget.within(
            "observe", partial(self._look, count), {}, PART_OF_BUDGET
        )

    def look_at_sums(self) -> None:
        """Measure sums on the sample with most extrema; raises as `look` does."""
        chosen = self._chosen(1)
        self._steps += len(chosen)
        self._measure(*with_twins(self._network, self._roles, sums), chosen)

    def _chosen(self, count: int) -> list[int]:
        extrema = [(reach.absmax, reach.worst_sample) for reach in self._reach.values()]
        return choose_samples(extrema, range(len(self._samples)), count)

    def _look(self, count: int) -> dict[TensorName, Detail]:
        visited = sum(DRAWN if t in self._drawn else n for t, n in self._sizes.items())
        affordable = max(FEW_SAMPLES, DETAIL_ELEMENTS // max(1, visited))
        chosen = self._chosen(min(count, len(self._samples), affordable))
        self._steps = self._done + (2 if self._late_sums else 3) * len(chosen)
        if not self._late_sums:
            self._measure(*with_twins(self._network, self._roles, sums), chosen)
        # Kernels for GPUs do not give out what is inside.
        with suppress(BuildFailed, RunFailed):
            self._measure(*with_twins(self._network, self._roles, insides), chosen)
        self._elements(chosen)
        details = {t: c.detail(len(chosen)) for t, c in self._counters.items()}
        return {name: details[self._roots[name]] for name in self._reach}

    def _extrema(
        self, probe: Probe | None, seen: Sequence[tuple[Outputs, Mapping[TensorName, Extremum]]]
    ) -> list[Outputs]:
        """Find the extrema over all samples; return the outputs per sample."""
        probe = probe or ExtremaProbe(
            self._network.model, tuple(self._reach), runtime=self._runtime
        )
        outputs: list[Outputs] = []
        least: dict[TensorName, int] = {}
        for index in range(len(self._samples)):
            is_known = index < len(seen)
            results, extrema = seen[index] if is_known else probe.run(self._samples[index])
            outputs.append(results)
            for name, extremum in extrema.items():
                reach, size = self._reach[name], extremum.size
                self._sizes[name] = max(self._sizes.get(name, 0), size)
                least[name] = min(least.get(name, size), size)
                reach.nonfinite += extremum.nonfinite
                if extremum.absmax > reach.absmax:
                    reach.absmax, reach.worst_sample = extremum.absmax, index
            self._tick()
        probe.release()
        if self._network.opset >= SELECTING_OPSET:
            sizes = self._sizes
            finite = (t for t, reach in self._reach.items() if not reach.nonfinite)
            large = (t for t in finite if least[t] == sizes[t] > 2 * DRAWN)
            self._drawn = {t: sizes[t] for t in large}
        return outputs

    def _measure(
        self,
        model: ir.Model,
        wanted: Mapping[TensorName, tuple[NodeName, InnerKind]],
        chosen: Sequence[int],
    ) -> None:
        """Take the extrema of tensors added to a model as numbers of the nodes they belong to."""
        if not wanted:
            self._steps -= len(chosen)
            return
        try:
            probe = ExtremaProbe(model, tuple(wanted), runtime=self._runtime)
        except CaseError as error:
            # The added nodes are at fault: the plain model loads.
            raise BuildFailed(
                f"The model does not load with the nodes added for measuring: {error.message}",
                "This is a bug in halfwise; please report it with the model's operators and opset.",
            ) from error
        for index in chosen:
            for name, extremum in probe.run(self._samples[index])[1].items():
                self._inner.add(*wanted[name], extremum.absmax, index)
            self._tick()

    def _elements(self, chosen: Sequence[int]) -> None:
        """Visit elements of every tensor on the chosen samples."""
        counters, model = self._counters, self._network.copy()
        details = self._network, model, self._roles, self._fmt, self._inner, chosen, self._drawn
        inner = views(*details)

        def counting(name: TensorName) -> View:
            def count(_: int, array: NDArray[Any]) -> None:
                self._budget.check()
                counters[name].add(array)

            return View((name,), count, drawn=self._drawn.get(name, 0))

        computed = {tensor_name(v) for n in self._network.nodes() for v in n.outputs if v.name}
        ordered = [counting(name) for name in counters if name not in computed]
        for node in self._network.nodes():
            if (name := node_name(node)) in inner:
                ordered.append(inner[name])
            outputs = (tensor_name(v) for v in node.outputs if v.name)
            ordered += [counting(t) for t in outputs if t in counters]
        ordered.append(View((), lambda _: self._tick()))
        samples = self._samples.select(chosen)
        visit_elements(model, samples, ordered, self._sizes, runtime=self._runtime)

    def records(self) -> Observations:
        """Return the observations."""
        producers = {tensor_name(v): n for n in self._network.nodes() for v in n.outputs if v.name}
        bodies = [body.of_samples(observer.records()) for body, observer in self._bodies]
        own = Observations(
            tensors=tuple(
                Observation(
                    tensor=name,
                    producer=node_name(producers[name]) if name in producers else None,
                    op=producers[name].op_type if name in producers else "",
                    absmax=reach.absmax,
                    nonfinite=reach.nonfinite,
                    worst_sample=reach.worst_sample,
                    detail=self._details.get(name),
                )
                for name, reach in self._reach.items()
            ),
            inner=self._inner.records(self._network),
            samples=self._samples.ids,
            constants=adjusted_constants(self._network, self._roles, frozenset(), self._fmt),
        )
        tensors = (one for part in (own, *bodies) for one in part.tensors)
        inner = (one for part in (own, *bodies) for one in part.inner)
        return replace(own, tensors=tuple(tensors), inner=tuple(inner))

    def _tick(self) -> None:
        self._budget.spend("pass")
        self._done += 1
        if self._progress:
            self._progress(self._done, self._steps)


@bounded
def observe(
    model: Model,
    inputs: Inputs,
    *,
    watcher: Watcher | None = None,
    **options: Unpack[Options],
) -> Observations:
    """Return statistics of every float tensor of the FP32 model on the samples.

    Args:
        model: The model: path or proto.
        inputs: Samples, as for `fix`.
        watcher: Receives progress.
        options: See `Options`.
    """
    watcher = watcher or Silent()
    request = understand(inputs, options)
    settings = request.settings
    case = load_asked(model, request, watcher, split=False)
    check(case.network, runtime=settings.runtime)
    watcher.stage("observe")
    with frozen_named(case.network):
        return observe_network(
            case.network,
            case.calibration,
            settings.fmt,
            roles=_roles(case.network, settings.fmt),
            runtime=settings.runtime,
            progress=watcher.step,
        )[0]


def _roles(network: Network, fmt: Format) -> Roles:
    """Return the roles at the opset to which `fix` would raise the model."""
    opset = max(network.opset, BF16_OPSET) if fmt == BF16 else None
    return roles_of(network, low_type(fmt), opset=opset)
