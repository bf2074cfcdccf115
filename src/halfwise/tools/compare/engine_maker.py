"""Make engines of one case on one worker, and judge them."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from halfwise.case import Case, Settings
from halfwise.emulation.runner import Arithmetic
from halfwise.fixing.engines.device import Workbench
from halfwise.formats import LOW_FORMATS
from halfwise.graph.model import Network
from halfwise.graph.weights import save
from halfwise.metrics import Outputs
from halfwise.options.engines import Target
from halfwise.progress import Watcher
from halfwise.records import BuildOutcome, Criterion, EngineFile, Verdict, replace
from halfwise.scratch import scratch
from halfwise.tensorrt.client import usable
from halfwise.tensorrt.failures import EngineFailed, build_failed
from halfwise.tools.compare.walk import RecordedSide, all_low, arithmetic_on

_LABELS = {"fp32": "FP32, TF32 off", "tf32": "FP32, TF32 on", "file": "the candidate"}
_LOW: Mapping[str, Literal["fp16", "bf16"]] = {"fp16": "fp16", "bf16": "bf16", "file": "fp16"}
"""The lowest type that weak typing may use."""


def label_of(kind: str) -> str:
    """Return the description of an engine; see `EngineMaker.build`."""
    return f"engine ({_LABELS.get(kind, f'all {kind.upper()}')})"


@contextmanager
def engine_maker(
    case: Case, settings: Settings, target: Target | None, watcher: Watcher, *, exact: bool = False
) -> "Iterator[EngineMaker | None]":
    """Give the engine maker of a case on a target; None without a target.

    The worker keeps the engines while the block runs; `exact` as for `usable`.
    """
    if target is None:
        yield None
        return
    with (
        usable(target.worker, watcher, exact=exact) as worker,
        scratch() as folder,
        EngineMaker(
            case, settings, target.profiled(case), worker, folder, watcher
        ).lasting() as maker,
    ):
        yield maker


@dataclass
class EngineMaker(Workbench):
    """Makes engines of one case on one worker."""

    def of(self, case: Case, build_timeout: float) -> "EngineMaker":
        """Return the maker for another case on the same worker, with other profiles.

        Its engines are for its caller to forget.
        """
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        how = replace(self.engine_settings, profiles=(), build_timeout=build_timeout)
        return replace(self, case=case, engine_settings=how, folder=folder)

    @contextmanager
    def lasting(self) -> "Iterator[EngineMaker]":
        """Remove the engines after the block, but not on Ctrl-C: a build may run on for minutes."""
        try:
            yield self
        except Exception:
            self.forget()
            raise
        self.forget()

    def forget(self) -> None:
        """Remove all engines from the worker; they take gigabytes."""
        self.builds.forget(None)

    def judge(
        self, engine: EngineFile, references: Sequence[Outputs], criterion: Criterion
    ) -> Verdict:
        """Return the verdict on an engine, by `criterion` or the user's metric."""
        by = criterion if self.case.users_metric is None else None
        return self.measure.judge(engine, self.case.calibration, references, by).verdict

    def build(self, kind: str, *, file: Network | None = None, purpose: str = "") -> BuildOutcome:
        """Build an engine.

        Args:
            kind: "fp32" (TF32 off), "tf32", or entirely "fp16" or "bf16"; "file" for another file,
                in its types.
            file: That file.
            purpose: What it is for, in messages.

        Raises:
            EngineFailed: the connection is lost, which says nothing about the engine.
        """
        source, low, tf32 = self.fp32, _LOW.get(kind), kind == "tf32"
        if file is not None:
            source = self.file(file.model, "candidate.onnx", lambda: file)
            tf32 = self.engine_settings.tf32
        elif low is not None and self.builds.typing == "strong":
            source = self.folder / f"all-{kind}.onnx"
            save(all_low(self.case.network, LOW_FORMATS[kind], self.settings), source)
        step = f"{purpose} {label_of(kind)}".lstrip()
        outcome = self.builds.build(source, step, low=low, tf32=tf32)
        if outcome.status == "lost":
            raise EngineFailed(outcome.message, status="lost")
        return outcome

    def built(self, kind: str) -> EngineFile:
        """Return an engine; see `build`.

        Raises:
            BuildFailed: the build failed.
        """
        outcome = self.build(kind)
        if outcome.engine is None:
            raise build_failed(outcome, f"no {label_of(kind)}")
        return outcome.engine

    def side(self, kind: str) -> RecordedSide:
        """Return an engine's outputs; it shows no tensor inside: to mark one would end a fusion.

        Raises:
            BuildFailed: the build failed.
            EngineFailed: it cannot run, or the connection is lost.
        """
        engine = self.built(kind)
        outputs = [self.measure.run(engine, sample) for sample in self.case.calibration]
        arithmetic = arithmetic_on(self.case.network, cast(Arithmetic, kind))
        return RecordedSide(outputs, label_of(kind), arithmetic, absent="fused")
