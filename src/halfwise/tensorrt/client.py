"""Asks a worker for engines: builds, runs, times and inspects them.

A crash, a hang or a lost connection is an outcome of a build, and elsewhere an `EngineFailed`;
the next request gets a fresh process. No process is left behind.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from numpy.typing import NDArray

from halfwise.errors import BackendMissing, UsageError
from halfwise.progress import Watcher, interruption
from halfwise.records import BuildConfig, BuildOutcome, EngineFile, Latency, TensorName, replace
from halfwise.tensorrt import link
from halfwise.tensorrt.answers import (
    Description,
    Feeds,
    described,
    network_layers,
    packed,
    unpacked,
)
from halfwise.tensorrt.failures import EngineFailed, last_words, named
from halfwise.tensorrt.link import Link, Log
from halfwise.tensorrt.transport import GRACE_SECONDS, KILL_SECONDS
from halfwise.tensorrt.workers import WorkerSpec

_Result = TypeVar("_Result")

HELLO_SECONDS = 120.0
"""Limit for a worker to start: a container may start, and TensorRT's libraries are gigabytes."""


class Worker(Link):
    """A worker that runs for the duration of a `with` block.

    An invalid answer to any request ends its process and raises `WorkerEnded`.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        limit: float = HELLO_SECONDS,
    ) -> None:
        """Take its name in messages, and the command that ends in an interpreter.

        `limit` is the seconds it may take to start, and to answer requests without work.
        """
        super().__init__(name, command, limit)
        self._here: dict[str, Path] = {}
        self._described: dict[str, Description] = {}

    def __enter__(self) -> Self:
        """Start it.

        Raises:
            BackendMissing: it does not answer. If TensorRT or a GPU is missing there,
                `info.trouble` says so, and `demand_usable` raises.
        """
        self.connect()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it, sooner if the block failed or was interrupted."""
        self.close(patience=KILL_SECONDS if error is None else GRACE_SECONDS)

    def demand_usable(self) -> None:
        """Raise BackendMissing if it lacks a TensorRT of a known version, or a GPU."""
        if self.info.trouble:
            raise BackendMissing(
                f"Worker {self.info.name} cannot use TensorRT: {self.info.trouble}",
                "`halfwise doctor` shows every worker; name one with --trt-command.",
            )

    def build(
        self,
        model: Path,
        config: BuildConfig,
        *,
        number: int,
        purpose: str,
        timeout: float | None,
        cached: bool = False,
    ) -> BuildOutcome:
        """Build an engine; it stays with the worker until `fetch`.

        Args:
            model: ONNX file; its external data lies next to it.
            config: Settings of the engine.
            number: Number of the build in the run.
            purpose: What it is for.
            timeout: Seconds for the build alone; None for no limit.
            cached: Use the worker's timing cache, one per GPU and version.

        Returns:
            The outcome; failures, crashes, time-outs and lost connections are recorded in it.

        Raises:
            BackendMissing: TensorRT, the GPU or a plugin is missing there.
            UsageError, CaseError: the configuration does not fit the version or the model.
        """
        over, log = interruption(), Log()
        request, needed = link.build_request(model, config, cached=cached)
        how: dict[str, Any] = {}
        try:
            self.need(needed, lambda: over.asked)
            answer, _ = self.ask(
                request,
                what="The build",
                timeout=timeout,
                log=log,
                explained=lambda refusal: named(refusal, model, self.info.tensorrt),
            )
        except EngineFailed as failed:
            how["status"], how["signal"] = failed.status, failed.signal
            how["message"] = f"{failed.message} {failed.hint}".strip()
            how["seconds"], how["log"] = log.seconds, failed.log
            how["parsed"], how["said"] = failed.code != "parse", last_words(failed.log)
        else:
            how["status"], how["seconds"] = "built", answer["seconds"]
            how["engine"] = EngineFile(side="worker", **answer["engine"])
            how["layers"] = network_layers(answer["layers"])
            how["unconstrained"] = answer["unconstrained"]
            how["log"] = tuple(log.complaints)
        return BuildOutcome(number=number, purpose=purpose, config=config, **how)

    def fetch(self, engine: EngineFile, path: Path) -> EngineFile:
        """Fetch an engine to the local `path`; return it with its new place.

        Raises:
            EngineFailed: the connection is lost, or the worker no longer has the engine.
            OSError: it cannot be written: there is no room, say.
            WorkerEnded: it arrives damaged.
        """
        self._again(lambda: self.take(engine.sha256, engine.bytes, path))
        self._here[engine.sha256] = path
        return replace(engine, side="here", path=str(path))

    def upload(self, path: Path) -> EngineFile:
        """Upload an engine file to the worker unless it has it.

        Raises:
            EngineFailed: the connection is lost.
        """
        sha256 = link.file_sha256(path)
        self._here[sha256] = path
        self.need({sha256: path})
        there = f"{self.cache}/files/{sha256}"
        return EngineFile(sha256=sha256, bytes=path.stat().st_size, side="worker", path=there)

    def describe(self, engine: EngineFile, timeout: float | None = None) -> Description:
        """Return inputs, outputs and profiles of an engine.

        Raises:
            RecordMismatch: TensorRT there cannot read it: other version or GPU, or damaged.
            EngineFailed: it crashes, hangs, or the connection is lost.
        """
        if engine.sha256 not in self._described:
            request = {"op": "describe", "engine": engine.sha256}
            answer, _ = self._ask(engine, request, "Reading the engine", timeout)
            self._described[engine.sha256] = described(answer)
        return self._described[engine.sha256]

    def run(
        self,
        engine: EngineFile,
        profile: int,
        feeds: Feeds,
        timeout: float | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Run one sample; return the outputs by name.

        Feeds are converted to the engine's types (`ports.fit_inputs`); outputs keep theirs.

        Raises:
            CaseError: a feed has a shape outside the profile, or values that its type cannot hold.
            RecordMismatch, EngineFailed: as for `describe`.
        """
        answer, data = self._ask_bound("run", engine, profile, feeds, "The run", timeout, {})
        return unpacked(answer["outputs"], data)

    def time(
        self,
        engine: EngineFile,
        profile: int,
        feeds: Feeds,
        timeout: float | None = None,
        *,
        seconds: float = 2.0,
        iterations: int = 50,
        warmup: float = 0.3,
    ) -> Latency:
        """Return the latency on one sample; same errors as `run`.

        At least `iterations` runs, for about `seconds`, after `warmup` seconds.
        """
        how = {"seconds": seconds, "iterations": iterations, "warmup": warmup}
        answer, _ = self._ask_bound("time", engine, profile, feeds, "Timing", timeout, how)
        shapes = {TensorName(name): array.shape for name, array in feeds.items()}
        return Latency(shapes=shapes, **answer)

    def inspect(
        self,
        engine: EngineFile,
        profile: int,
        feeds: Feeds,
        timeout: float | None = None,
    ) -> str:
        """Return the inspector's raw JSON.

        The sample's shapes are bound, which resolves dynamic ones. Same errors as `run`.
        """
        _, data = self._ask_bound("inspect", engine, profile, feeds, "Inspecting", timeout, {})
        return data.decode(errors="replace")

    def forget(self, engine: EngineFile) -> None:
        """Remove the worker's copy of an engine."""
        self.exchange({"op": "forget", "sha256": engine.sha256})
        self._there.discard(engine.sha256)

    def _ask_bound(
        self,
        op: str,
        engine: EngineFile,
        profile: int,
        feeds: Feeds,
        what: str,
        timeout: float | None,
        how: Mapping[str, Any],
    ) -> tuple[dict[str, Any], bytes]:
        there = self.describe(engine, timeout)
        inputs, payload = packed(feeds, there)
        request = {"op": op, "engine": engine.sha256, "profile": profile, "inputs": inputs}
        return self._ask(engine, request | dict(how), what, timeout, payload)

    def _ask(
        self,
        engine: EngineFile,
        request: Mapping[str, Any],
        what: str,
        timeout: float | None,
        payload: bytes = b"",
    ) -> tuple[dict[str, Any], bytes]:
        path = Path(engine.path) if engine.side == "here" else self._here.get(engine.sha256)

        def asked() -> tuple[dict[str, Any], bytes]:
            if path is not None:
                self.need({engine.sha256: path})
            return self.ask(request, payload, what=what, timeout=timeout)

        return self._again(asked)

    def _again(self, asked: Callable[[], _Result]) -> _Result:
        """Return what `asked` does, called once more if the connection was lost.

        The loss does not concern the engine. If that went with it, the loss is raised.
        """
        try:
            return asked()
        except EngineFailed as lost:
            if lost.status != "lost":
                raise
            try:
                return asked()
            except EngineFailed:
                raise lost from None


@contextmanager
def usable(spec: WorkerSpec, watcher: Watcher, *, exact: bool = False) -> Iterator[Worker]:
    """Yield the worker, started and able to build; a note says how its environment affects TF32.

    Args:
        spec: The worker.
        watcher: Receives the TensorRT version and the GPU.
        exact: Whether its engines must be free of TF32.

    Raises:
        BackendMissing: it does not start, or lacks TensorRT or a GPU.
        UsageError: its environment may put TF32 into every engine, and `exact` is set.
    """
    watcher.stage("worker")
    with Worker(spec.name, spec.command) as worker:
        worker.demand_usable()
        info = worker.info
        watcher.note(f"{info.product} {info.tensorrt} on {info.gpu} ({' '.join(spec.command)})")
        if info.tf32_remark:
            if exact and info.tf32_override != "0":
                *begin, interpreter = info.command
                without = shlex.join([*begin, "env", "-u", "NVIDIA_TF32_OVERRIDE", interpreter])
                raise UsageError(
                    info.tf32_remark,
                    f"Unset it there, or use --trt-command {shlex.quote(without)}.",
                )
            watcher.note(info.tf32_remark)
        yield worker
