"""The subject of a diagnosis, and what the framework computed for it."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx_ir as ir
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.case import Case, Samples, Settings
from halfwise.emulation.ort import Session
from halfwise.graph.quantised import pairs_of
from halfwise.judging.judge import computed, judge_outputs
from halfwise.judging.reference import frozen_named
from halfwise.metrics import Outputs
from halfwise.progress import Watcher
from halfwise.records import (
    FP32_SNR_DB,
    Criterion,
    Observations,
    Rung,
    RungName,
    Sign,
    Step,
    Verdict,
    said,
)
from halfwise.reporting.remarks import reasons
from halfwise.tools.compare.engine_maker import EngineMaker
from halfwise.wording import number


class Subject(Struct, dict=True):
    """A model with its inputs, and all that the rungs need.

    Attributes:
        case: Network, all samples (as calibration), criterion and metric.
        settings: Low format, device, and how to search.
        folder: The unfinished run folder.
        watcher: Receives progress.
        expected: The framework's tensors for each sample; None if not given.
        others: The same samples from a second pipeline; None without.
        engines: Engine maker; None without a target.
        fix: The `fix` of the same case; None if it is no next step.
        tried: What the first rung tried on the inputs in vain, in words; "" for nothing.
        seen: Observations of the tensors, once a rung has made them.
    """

    case: Case
    settings: Settings
    folder: Path
    watcher: Watcher
    expected: Sequence[Mapping[str, NDArray[Any]]] | None = None
    others: Samples | None = None
    engines: EngineMaker | None = None
    fix: Step | None = None
    tried: str = ""
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
        with frozen_named(self.case.network):
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
