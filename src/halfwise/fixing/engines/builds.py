"""Every build of a run: numbered, recorded before it begins, and kept with its outcome.

If the worker is lost, a build is repeated once: the loss concerns the worker, not the build. A
worker that has built before and no longer can, because its GPU is gone, counts as lost too.

Also what may be requested of a worker, and how to report a build without an engine.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Literal

from halfwise.case import EngineSettings
from halfwise.emulation.budget import limited, sized
from halfwise.errors import HalfwiseError
from halfwise.fixing.engines.measure import is_lost
from halfwise.progress import Watcher
from halfwise.records import (
    BuildConfig,
    BuildOutcome,
    EngineFile,
    NodeName,
    TensorName,
    Typing,
)
from halfwise.tensorrt.client import Worker
from halfwise.tensorrt.failures import WORKER_GONE, EngineFailed, Journal
from halfwise.tensorrt.link import model_files
from halfwise.tensorrt.refusals import LOST, how_refused
from halfwise.wording import shorten


@dataclass
class Builds:
    """Builds engines on one worker.

    Attributes:
        worker: The worker.
        settings: How to build, optimization profiles included.
        typing: Typing regime.
        journal: Written before and after each build; None for none.
        watcher: Receives progress.
        numbers: Counts builds across the command; None counts only these.
        outcomes: Every build so far, in order.
        hashes: SHA-256 of each built file, as in `BuildConfig.model_sha256`.
    """

    worker: Worker
    settings: EngineSettings
    typing: Typing
    journal: Journal | None
    watcher: Watcher
    numbers: Iterator[int] | None = None
    outcomes: list[BuildOutcome] = field(default_factory=list)
    hashes: dict[Path, str] = field(default_factory=dict)

    def build(
        self,
        model: Path,
        purpose: str,
        *,
        low: Literal["fp16", "bf16"] | None = None,
        tf32: bool = False,
        level: int | None = None,
        keep: Iterable[NodeName] = (),
        outputs: Iterable[TensorName] = (),
        unfused: bool = False,
        fresh: bool = False,
    ) -> BuildOutcome:
        """Build an engine and return the outcome.

        Args:
            model: ONNX file to build from; must not change during the run.
            purpose: What the engine is for.
            low: Low format that the builder may choose; weak typing only.
            tf32: Whether FP32 products may be TF32.
            level: Optimization level; None for the one in the settings.
            keep: Nodes to constrain; weak typing only.
            outputs: Further tensors to make outputs.
            unfused: Mark what fusion leaves for debugging.
            fresh: Time all tactics again, so that builds vary by chance, instead of reading them
                from the cache shared by builds on this GPU. A user's cache is always used.

        Raises:
            UsageError, CaseError: as for `Worker.build`.
            BackendMissing, WorkerEnded: likewise, if nothing was built before.
        """
        weak = self.typing == "weak"
        config = BuildConfig(
            model_sha256=self._sha256(model),
            typing=self.typing,
            low=low if weak else None,
            tf32=tf32,
            keep=tuple(keep) if weak else (),
            profiles=self.settings.profiles,
            workspace_bytes=self.settings.workspace_bytes,
            optimization_level=self.settings.optimization_level if level is None else level,
            tactic_sources=self.settings.tactic_sources,
            plugins=self.settings.plugins,
            outputs=tuple(outputs),
            unfused=unfused,
        )
        outcome = self._once(model, config, purpose, fresh=fresh)
        if outcome.status == "lost":
            outcome = self._once(model, config, purpose, fresh=fresh)
        return outcome

    def _next(self) -> int:
        """Return the number of the next build; unique across builds that share a count."""
        return len(self.outcomes) + 1 if self.numbers is None else next(self.numbers)

    def _once(self, model: Path, config: BuildConfig, purpose: str, *, fresh: bool) -> BuildOutcome:
        number = self._next()
        self.watcher.note(f"build {number}: {purpose}")

        def run() -> BuildOutcome:
            try:
                with (
                    limited(expect=self.watcher.expect),
                    sized("building"),
                    self._bounded(number),
                ):
                    return build()
            except (*WORKER_GONE, OSError) as error:
                return self._not_begun(error, number, config, purpose)

        def build() -> BuildOutcome:
            return self.worker.build(
                model,
                config,
                number=number,
                purpose=purpose,
                timeout=self.settings.build_timeout,
                timing_cache=self.settings.timing_cache,
                shared_timing_cache=self.settings.timing_cache is None and not fresh,
                verbose=self.settings.verbose,
                log=self._hear,
                progress=lambda phase, done, total: self.watcher.step(done, total or None, phase),
            )

        if self.journal is None:
            return self._kept(run())
        timeout = self.settings.build_timeout
        return self._kept(
            self.journal.record(run, number=number, purpose=purpose, config=config, timeout=timeout)
        )

    @contextmanager
    def _bounded(self, number: int) -> Iterator[None]:
        """Report how long the first build may take at most; others are expected to take as long."""
        if number == 1:
            self.watcher.left(self.settings.build_timeout)
        yield
        if number == 1:
            self.watcher.left(inf)

    def without_model(self, error: OSError, purpose: str) -> BuildOutcome:
        """Return the outcome for a model that cannot be written here.

        Raises:
            OSError: no engine was built before, so the run would lose nothing.
        """
        config = BuildConfig(model_sha256="", typing=self.typing, profiles=self.settings.profiles)
        return self._kept(self._not_begun(error, self._next(), config, purpose))

    def _not_begun(
        self, error: HalfwiseError | OSError, number: int, config: BuildConfig, purpose: str
    ) -> BuildOutcome:
        """Return the outcome of a build that an error kept from starting.

        If no engine was built before, the error is raised: the run would lose nothing.
        """
        if all(outcome.engine is None for outcome in self.outcomes):
            raise error
        lost = isinstance(error, HalfwiseError)
        return BuildOutcome(
            number=number,
            purpose=purpose,
            status="lost" if lost else "failed",
            message=error.message
            if isinstance(error, HalfwiseError)
            else f"Its files cannot be written here: {error.strerror or error}.",
            begun=False,
            config=config,
            seconds=0.0,
        )

    def _kept(self, outcome: BuildOutcome) -> BuildOutcome:
        self.outcomes.append(outcome)
        if outcome.status != "built":
            line = how_refused(outcome).line if outcome.status == "failed" else ""
            told = f"build {outcome.number} {outcome.status}: {outcome.message}"
            self.watcher.note(told if line in outcome.message else f"{told} {shorten(line, 200)}")
        return outcome

    def forget(self, kept: EngineFile | None) -> None:
        """Remove all engines on the worker except `kept`; they may take gigabytes."""
        made = {o.engine.sha256: o.engine for o in self.outcomes if o.engine is not None}
        if kept is not None:
            made.pop(kept.sha256, None)
        # If the worker is lost, nobody needs the space.
        with suppress(HalfwiseError):
            for engine in made.values():
                self.worker.forget(engine)

    def _hear(self, severity: str, text: str) -> None:
        # Waiting may take minutes, without any other sign.
        if severity in ("waiting", "remark"):
            self.watcher.note(text)

    def _sha256(self, model: Path) -> str:
        if model not in self.hashes:
            self.hashes[model] = model_files(model).sha256
        return self.hashes[model]


def nothing_judged(why: str) -> EngineFailed:
    """Return the error for a worker lost before any of its engines can be delivered."""
    return EngineFailed(
        "The worker was lost before a correct engine was fetched, so there is none to "
        f"deliver: {why}",
        LOST,
        status="lost",
    )


@contextmanager
def judging() -> Iterator[None]:
    """Raise that no engine can be delivered if the connection is lost in the block."""
    try:
        yield
    except EngineFailed as failed:
        if not is_lost(failed):
            raise
        raise nothing_judged(failed.message) from failed
