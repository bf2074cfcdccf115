"""The subject of a diagnosis, and what the framework computed for it."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.case import Case, Samples, Settings
from halfwise.emulation.ort import Session
from halfwise.errors import BackendMissing, CaseError, UsageError
from halfwise.formats import ROUNDINGS_OF_MODEL
from halfwise.graph.quantised import pairs_of
from halfwise.inputs import load_function
from halfwise.judging.judge import computed, judge_outputs
from halfwise.metrics import Outputs
from halfwise.metrics.difference import is_discrete
from halfwise.progress import Watcher
from halfwise.records import (
    FP32_SNR_DB,
    Criterion,
    InputTrials,
    Observations,
    Rung,
    RungName,
    Sign,
    Step,
    Verdict,
    said,
)
from halfwise.reporting.remarks import reasons
from halfwise.tools.compare.command import recorded_tensors
from halfwise.tools.compare.engine_maker import EngineMaker
from halfwise.tools.compare.walk import Side, Walk
from halfwise.user_code import guarded
from halfwise.wording import number

_SHARE = 0.25
"""Error, relative to the outputs' spread between samples, up to which another order fits: the
outputs of other samples give about √2."""
ALIKE = 4.0
"""Factor up to which two errors in FP32 are alike: both flip a few choices each, and counts as
small as these vary. Our choice."""
LONGEST_ROW = 4096
"""Most numbers of an output that are compared between samples. Our choice."""


def order(expected: Sequence[Outputs], computed: Sequence[Outputs]) -> tuple[int, ...] | None:
    """Return the sample of each given output, if another order of the samples fits.

    Each is matched with the nearest computed outputs. Only outputs count that hold finite floats of
    one shape and are not alike in all samples.

    Args:
        expected: What the framework gave, by sample.
        computed: What the model gives, by sample; at least these outputs.

    Returns:
        An index for each sample; None if the nearest form no other order, or do not fit.
    """
    parts = []
    for name, first in expected[0].items() if expected else ():
        arrays = [np.ravel(each[name]) for side in (expected, computed) for each in side]
        if is_discrete(first.dtype) or len({array.shape for array in arrays}) > 1:
            continue
        rows = np.stack([a[:: -(-a.size // LONGEST_ROW) or 1] for a in arrays]).astype(np.float64)
        actual = rows[len(expected) :]
        spread = _rms(actual - actual.mean(axis=0))
        if np.isfinite(rows).all() and spread > ROUNDINGS_OF_MODEL * _rms(actual):
            parts.append((rows - actual.mean(axis=0)) / spread)
    if not parts:
        return None
    wanted, actual = np.split(np.concatenate(parts, axis=1), 2)
    squares = (wanted**2).sum(axis=1)[:, None] + (actual**2).sum(axis=1) - 2 * wanted @ actual.T
    nearest = squares.argmin(axis=1)
    if len(set(nearest)) < len(nearest) or (nearest == np.arange(len(nearest))).all():
        return None
    fits = _rms(wanted - actual[nearest]) <= _SHARE * min(1, _rms(wanted - actual))
    return tuple(map(int, nearest)) if fits else None


def _rms(array: NDArray[np.float64]) -> float:
    return sqrt(float(np.square(array).mean())) if array.size else 0.0


def demand_expected(expected: str | Path | None, runner: str | None) -> None:
    """Raise UsageError if a runner is named, but no outputs are given."""
    if runner is not None and expected is None:
        raise UsageError(
            f"--runner {runner} does not apply without --expected.", "Give --expected too."
        )


def expected_tensors(case: Case, source: str | Path, runner: str | None) -> Sequence[Outputs]:
    """Return the framework's tensors for each sample of a case, by the model's tensor names.

    Args:
        case: Model and samples.
        source: Recorded tensors, see `recorded_tensors`; or `file.py:factory` that returns a
            torch.nn.Module (or one and example inputs). The file runs, as the user asked, and the
            module in FP32 and eval mode. Its inputs and outputs match by name if the names are the
            model's, else in order.
        runner: Runner whose tensors to use, if several are recorded.

    Raises:
        BackendMissing: PyTorch is not installed.
        UsageError, CaseError: the file cannot be used, or its module does not fit the model.
    """
    text = str(source)
    if ".py:" not in text and not text.endswith(".py"):
        return recorded_tensors(case, Path(source), runner)[0]
    if runner is not None:
        raise UsageError(
            f"--runner {runner} does not apply to {text}, which names no runners.",
            "Leave --runner out.",
        )
    _demand_torch()
    module = _Module(load_function(text)(), text)
    inputs, outputs = (
        [str(v.name) for v in values]
        for values in (case.network.graph.inputs, case.network.graph.outputs)
    )
    return [
        module.outputs({name: sample[name] for name in inputs}, outputs)
        for sample in case.calibration
    ]


def _demand_torch() -> None:
    """Raise BackendMissing if PyTorch is not installed."""
    try:
        import torch  # noqa: F401, PLC0415 (PyTorch is an extra, and takes seconds to load)
    except ImportError as error:
        raise BackendMissing(
            f"PyTorch is not installed: {error}.", "Install it: pip install 'halfwise[torch]'."
        ) from error


class _Module:
    """The user's module in eval mode, called with arrays."""

    def __init__(self, made: object, source: str) -> None:
        """Take what a factory returned: a module, or one and example inputs.

        Raises:
            CaseError: the factory returned neither, or the parameters are not FP32.
        """
        import torch  # noqa: PLC0415

        module = made[0] if isinstance(made, tuple) and len(made) == 2 else made
        if not isinstance(module, torch.nn.Module):
            raise CaseError(
                f"{source} returned {type(module).__name__}, not a torch.nn.Module.",
                "Return the module, or a pair of module and example inputs.",
            )
        low = {p.dtype for p in module.parameters()} & {torch.float16, torch.bfloat16}
        if low:
            raise CaseError(
                f"The module returned by {source} stores {', '.join(sorted(map(str, low)))}.",
                "Return it in FP32: call module.float() before loading its weights.",
            )
        self.source = source
        self.module = module.eval()
        self.names = tuple(inspect.signature(module.forward).parameters)

    def outputs(
        self, arrays: Mapping[str, NDArray[Any]], names: Sequence[str]
    ) -> dict[str, NDArray[Any]]:
        """Return the export's outputs `names`: by key if they are keys, else in order.

        Args:
            arrays: The export's inputs; they are parameters of forward, or stand in its order.
            names: The export's outputs.

        Raises:
            CaseError: the module raised, or the number of inputs or outputs differs.
        """
        import torch  # noqa: PLC0415

        tensors = {n: torch.from_numpy(np.array(a)) for n, a in self._bound(arrays).items()}
        called = guarded(
            self.source,
            f"The module of {self.source}",
            f" on inputs of shape {', '.join(f'{n} {tuple(t.shape)}' for n, t in tensors.items())}",
            "Check the inputs against forward.",
        )
        with called, torch.no_grad():
            result = self.module(**tensors)
            leaves = [leaf.numpy() for leaf in _leaves(result)]
            pairs = result.items() if isinstance(result, Mapping) else ()
            keyed = {k: v.detach().numpy() for k, v in pairs if isinstance(v, torch.Tensor)}
        if keyed.keys() >= {*names}:
            return {name: keyed[name] for name in names}
        if len(leaves) != len(names):
            raise CaseError(
                f"The module of {self.source} returns {len(leaves)} tensors, but the model has "
                f"{len(names)} outputs: {', '.join(names)}.",
                "Return the exported tensors in that order, or as a dictionary with these names.",
            )
        return dict(zip(names, leaves, strict=True))

    def _bound(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        if arrays.keys() <= {*self.names}:
            return arrays
        if len(arrays) > len(self.names):
            raise CaseError(
                f"The model has inputs {', '.join(arrays)}, but the module of {self.source} takes "
                f"{', '.join(self.names) or 'none'}.",
                "Give the module that the model was exported from.",
            )
        return dict(zip(self.names, arrays.values(), strict=False))


def _leaves(result: object) -> Iterator[Any]:
    """Yield tensors in the order in which exporters number them."""
    import torch  # noqa: PLC0415

    if isinstance(result, torch.Tensor):
        yield result.detach()
    elif isinstance(result, Mapping):
        for value in result.values():
            yield from _leaves(value)
    elif isinstance(result, Sequence) and not isinstance(result, str):
        for value in result:
            yield from _leaves(value)


@dataclass
class Subject:
    """A model with its inputs, and all that the rungs need.

    Attributes:
        case: Network, all samples (as calibration), criterion and metric.
        settings: Low format, device, and how to search.
        folder: The unfinished run folder.
        watcher: Receives progress.
        allow_random: Whether made-up inputs are accepted.
        allow_unjudged: Whether nonfinite FP32 outputs are accepted.
        expected: The framework's tensors for each sample; None if not given.
        others: The same samples from a second pipeline; None without.
        engines: Engine maker; None without a target.
        fix: The `fix` of the same case; None if it is no next step.
        tried: The first rung's trials on the inputs, if the outputs are not `expected`.
        seen: Observations of the tensors, once a rung has made them.
    """

    case: Case
    settings: Settings
    folder: Path
    watcher: Watcher
    allow_random: bool = False
    allow_unjudged: bool = False
    expected: Sequence[Mapping[str, NDArray[Any]]] | None = None
    others: Samples | None = None
    engines: EngineMaker | None = None
    fix: Step | None = None
    tried: InputTrials | None = None
    seen: Observations | None = None

    @property
    def samples(self) -> Samples:
        """All samples."""
        return self.case.calibration

    @cached_property
    def session(self) -> Session:
        """The FP32 model."""
        return Session(
            self.case.network.model,
            runtime=self.settings.runtime,
        )

    @cached_property
    def references(self) -> list[Outputs]:
        """The FP32 model's outputs for every sample."""
        return [self.session.run(s) for s in self.samples.with_progress(self.watcher.step)]

    @cached_property
    def given(self) -> list[Outputs]:
        """The framework's values of the model's outputs, by sample; empty if none."""
        outputs = [str(v.name) for v in self.case.network.graph.outputs]
        outputs_by_sample: list[Outputs] = [
            {n: e[n] for n in outputs if n in e} for e in self.expected or ()
        ]
        return outputs_by_sample if outputs_by_sample and outputs_by_sample[0] else []

    @cached_property
    def against_framework(self) -> Verdict | None:
        """The verdict on ONNX Runtime against the framework; None if no output was given."""
        if not self.given:
            return None
        return judge_outputs(
            [{name: r[name] for name in self.given[0]} for r in self.references],
            self.samples,
            self.given,
            self.same_function,
            self.case.users_metric,
            level="recorded",
        ).verdict

    @cached_property
    def order(self) -> tuple[int, ...] | None:
        """The sample of each framework output, if another order fits."""
        return order(self.given, self.references) if self.given else None

    @property
    def same_function(self) -> Criterion:
        """The criterion for two FP32 computations of one function, if the user named no metric.

        For a quantised model, the criterion for acceptable outputs.
        """
        if self.case.users_metric is not None or pairs_of(self.case.network):
            return self.case.criterion
        return Criterion(snr_db=FP32_SNR_DB, agreement=self.case.criterion.agreement)

    def judge(self, model: ir.Model) -> Verdict:
        """Return the verdict on a model with the same inputs and outputs, run in ONNX Runtime."""
        session = Session(model, runtime=self.settings.runtime)

        samples = self.samples.with_progress(self.watcher.step)
        return judge_outputs(
            [computed(session, sample) for sample in samples],
            self.samples,
            self.references,
            self.case.criterion,
            self.case.metric,
        ).verdict

    def walk(self, a: Side, b: Side) -> Walk:
        """Return a comparison of two sides, not yet run."""
        return Walk(
            self.case.network,
            self.samples,
            a,
            b,
            runtime=self.settings.runtime,
            progress=self.watcher.step,
        )


def skipped(rung: int, name: RungName, why: str, *advice: str) -> Rung:
    """Return a skipped rung."""
    return Rung(rung=rung, name=name, passed=None, how="skipped", cause=why, advice=said(*advice))


def signs_of(verdict: Verdict, who: str) -> list[Sign]:
    """Return the distance of the outputs of `who` from the reference, one sign each.

    The reason gives the figures of an output that is out of tolerance.
    """
    reasoned = verdict.metric is None and not verdict.failed_runs
    signs = [
        Sign(severity="error", text=f"{who}: {reason}.") for reason in reasons(verdict.failures)
    ]
    signs += [
        Sign(
            severity="info",
            text=f"{who}: output {name} has an SNR of {number(o.snr_db)} dB and a largest error of "
            f"{number(o.max_abs)}; worst on {o.worst_sample}.",
        )
        for name, o in verdict.outputs.items()
        if o.agreement is None and (o.passed or o.nonfinite or o.misshapen or not reasoned)
    ]
    return signs
