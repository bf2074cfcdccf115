"""A plain client of the worker file, for benches that measure without halfwise's own client."""

from __future__ import annotations

import hashlib
import math
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

WORKER = Path(__file__).resolve().parents[2] / "src/halfwise/tensorrt/worker.py"
CHUNK = 1 << 20


def _worker() -> ModuleType:
    """Return the worker's file as a module, by its path: halfwise's dependencies may be missing."""
    spec = spec_from_file_location("halfwise_worker", WORKER)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_FRAMES = _worker()


class Refused(Exception):
    """The worker's answer is an error, or its child died; `answer` says which."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        super().__init__(answer.get("message") or str(answer))
        self.answer = dict(answer)


@dataclass
class Answer:
    """An answer of the worker.

    Attributes:
        header: The answer's header.
        payload: Its bytes.
        logs: Headers of the log lines before it.
        seconds: Wall time.
    """

    header: dict[str, Any]
    payload: bytes
    logs: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


class Pipe:
    """A worker in a process of its own. Use it in a `with`."""

    def __init__(
        self, command: Sequence[str], tactic_sources: Sequence[str] | None, worker: Path = WORKER
    ) -> None:
        """Start the worker file with the interpreter that `command` ends in."""
        started = [*command, "-u", str(worker)]
        self._process = subprocess.Popen(started, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._sent = 0
        self._tactic_sources = None if tactic_sources is None else list(tactic_sources)
        self.logs: list[dict[str, Any]] = []
        self.end = math.inf
        """When to begin no more builds, by the monotonic clock."""

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def ask(self, op: str, payload: bytes = b"", **keys: Any) -> Answer:
        """Send a request and wait for its answer.

        Raises:
            Refused: The answer is no result.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        self._sent += 1
        started = time.monotonic()
        stdin.write(_FRAMES.pack({"op": op, "id": self._sent, **keys}, payload))
        stdin.flush()
        logs: list[dict[str, Any]] = []
        while True:
            frame = _FRAMES.read_frame(stdout)
            if frame is None:
                raise Refused({"kind": "lost", "status": self._process.wait(), "logs": logs})
            header, content = frame
            if header["kind"] in ("result", "error", "died"):
                self.logs = logs
                if header["kind"] != "result":
                    raise Refused(header)
                return Answer(header, content, logs, time.monotonic() - started)
            logs.append(header)

    def told(self) -> dict[str, Any]:
        """Return where engines are built, for results."""
        hello = self.ask("hello").header
        gpu = hello["gpus"][0]
        return {
            "tactic_sources": ",".join(self._tactic_sources or ["default"]),
            "gpu": gpu["name"],
            "compute_capability": gpu["compute_capability"],
            "driver": hello["driver"],
            "tensorrt": hello["tensorrt"],
            "worker_python": hello["python"],
        }

    def put(self, data: bytes) -> str:
        """Send bytes to the worker; return their SHA-256."""
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 in self.ask("have", hashes=[sha256]).header["missing"]:
            starts = range(0, max(len(data), 1), CHUNK)
            for start in starts:
                last = start == starts[-1]
                piece = data[start : start + CHUNK]
                self.ask("put", piece, sha256=sha256, offset=start, last=last)
        return sha256

    def get(self, sha256: str) -> bytes:
        """Return the bytes of a file that the worker keeps."""
        data = bytearray()
        while True:
            answer = self.ask("get", sha256=sha256, offset=len(data), length=CHUNK)
            data += answer.payload
            if len(data) >= answer.header["total"] or not answer.payload:
                return bytes(data)

    def build(
        self,
        model: bytes,
        *,
        cached: bool = False,
        timeout: float = 400.0,
        **config: Any,
    ) -> Answer:
        """Build an engine of an ONNX file; `config` overrides the default, FP32 without TF32."""
        if time.monotonic() > self.end:
            raise Refused({"kind": "skipped", "message": "no time left"})
        sha256 = self.put(model)
        plain = {
            "typing": "weak",
            "low": None,
            "tf32": False,
            "keep": [],
            "profiles": [],
            "workspace_bytes": None,
            "optimization_level": None,
            "tactic_sources": self._tactic_sources,
            "plugins": [],
            "debug": [],
        }
        return self.ask(
            "build",
            model={"files": [{"name": "model.onnx", "sha256": sha256}], "main": "model.onnx"},
            config={**plain, **config},
            cached=cached,
            timeout=timeout,
        )

    def on_arrays(
        self, op: str, engine: str, arrays: Mapping[str, np.ndarray], **keys: Any
    ) -> Answer:
        """Ask for `run`, `time` or `inspect` with these inputs."""
        inputs = [
            {"name": n, "dtype": str(a.dtype), "shape": list(a.shape)} for n, a in arrays.items()
        ]
        payload = b"".join(np.ascontiguousarray(a).tobytes() for a in arrays.values())
        asked = {"engine": engine, "profile": 0, "inputs": inputs, "timeout": 120.0, **keys}
        return self.ask(op, payload, **asked)

    def run(
        self, engine: str, arrays: Mapping[str, np.ndarray], **keys: Any
    ) -> dict[str, np.ndarray]:
        """Return the outputs of an engine."""
        answer = self.on_arrays("run", engine, arrays, **keys)
        outputs, start = {}, 0
        for told in answer.header["outputs"]:
            dtype = np.dtype(told["dtype"])
            count = math.prod(told["shape"])
            flat = np.frombuffer(answer.payload, dtype, count, start)
            outputs[told["name"]] = flat.reshape(told["shape"])
            start += count * dtype.itemsize
        return outputs


def shape_profile(shapes: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, Any]:
    """Return an optimization profile from (min, opt, max) shapes by input."""
    named = {
        n: dict(zip(("min", "opt", "max"), map(list, s), strict=True)) for n, s in shapes.items()
    }
    return {"shapes": named, "values": {}}
