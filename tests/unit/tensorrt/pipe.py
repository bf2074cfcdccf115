"""A client of the worker with nothing in between: a request, and all that is answered."""

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from halfwise.tensorrt import worker
from halfwise.tensorrt.transport import Unpacker
from halfwise.tensorrt.worker import pack
from tests.processes import end

CONFIG: dict[str, Any] = {
    "typing": "weak",
    "low": None,
    "tf32": False,
    "keep": [],
    "profiles": [],
    "workspace_bytes": None,
    "optimization_level": None,
    "tactic_sources": None,
    "plugins": [],
}


class Answer(dict[str, Any]):
    """The header of the frame that ended a request.

    Attributes:
        payload: Its bytes.
        before: Headers of the frames that came before, for this request.
        noise: Bytes outside of frames.
    """

    payload = b""
    before: Sequence[Mapping[str, Any]] = ()
    noise = b""

    def lines(self, severity: str | None = None) -> list[str]:
        """Return the lines of the log, all or of one severity."""
        logs = (h for h in self.before if h["kind"] == "log")
        return [h["text"] for h in logs if severity in (None, h["severity"])]


class Gone(Exception):
    """The worker's pipe has ended."""


class Pipe:
    """A worker's process and its pipes."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            [*command, worker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        self._unpacker = Unpacker()
        self._frames: list[Any] = []
        self._noise = b""
        self._number = 0

    def __enter__(self) -> "Pipe":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait()
        finally:
            end(self.process)
            self.process.stdout.close()

    def send(self, op: str, payload: bytes = b"", **header: Any) -> int:
        """Send a request; return its number."""
        self._number += 1
        assert self.process.stdin is not None
        data = memoryview(pack({"op": op, "id": self._number, **header}, payload))
        while data:
            data = data[self.process.stdin.write(data) :]
        return self._number

    def ask(self, op: str, payload: bytes = b"", **header: Any) -> Answer:
        """Send a request; return how it ended."""
        return self.answer(self.send(op, payload, **header))

    def answer(self, number: int, until: Sequence[str] = ("result", "error", "died")) -> Answer:
        """Return the next frame of a request that is of one of these kinds."""
        before: list[Mapping[str, Any]] = []
        self._noise = b""
        while True:
            found, content = self._next()
            if found.get("id") != number:
                continue
            if found["kind"] in until:
                answer = Answer(found)
                answer.payload, answer.before, answer.noise = content, before, self._noise
                return answer
            before.append(found)

    def _next(self) -> Any:
        assert self.process.stdout is not None
        while not self._frames:
            data = os.read(self.process.stdout.fileno(), 1 << 20)
            if not data:
                raise Gone
            frames, noise = self._unpacker.feed(data)
            self._frames, self._noise = self._frames + frames, self._noise + noise
        return self._frames.pop(0)

    # What needs more than one request, or arrays.

    def put(self, data: bytes) -> str:
        """Send a file; return its hash."""
        sha256 = hashlib.sha256(data).hexdigest()
        answer = self.ask("put", data, sha256=sha256, offset=0, last=True)
        assert answer["kind"] == "result", answer
        return sha256

    def build_request(self, model: onnx.ModelProto | bytes, **config: Any) -> dict[str, Any]:
        """Send a model; return the header of a request to build it."""
        data = model if isinstance(model, bytes) else model.SerializeToString()
        files = [{"name": "model.onnx", "sha256": self.put(data)}]
        return {
            "model": {"files": files, "main": "model.onnx"},
            "config": CONFIG | config,
            "cached": False,
        }

    def build(
        self, model: onnx.ModelProto | bytes, timeout: float | None = None, **config: Any
    ) -> Answer:
        """Build an engine of a model."""
        return self.ask("build", **self.build_request(model, **config), timeout=timeout)

    def run(self, engine: str, op: str = "run", /, **inputs: np.ndarray) -> Answer:
        """Run, time or inspect an engine on arrays."""
        told = [
            {"name": name, "dtype": str(array.dtype), "shape": list(array.shape)}
            for name, array in inputs.items()
        ]
        payload = b"".join(np.ascontiguousarray(a).tobytes() for a in inputs.values())
        return self.ask(op, payload, engine=engine, profile=0, inputs=told)


def arrays(answer: Answer) -> dict[str, np.ndarray]:
    """Return the outputs of a run."""
    found, offset = {}, 0
    for output in answer["outputs"]:
        kind = np.dtype(output["dtype"])
        size = int(np.prod(output["shape"])) * kind.itemsize
        data = answer.payload[offset : offset + size]
        found[output["name"]] = np.frombuffer(data, kind).reshape(output["shape"])
        offset += size
    assert offset == len(answer.payload)
    return found


def engine_file(folder: Path, sha256: str) -> Path:
    """Return where the worker of `worker_command(folder, …)` keeps a file."""
    return folder / "worker-cache" / "files" / sha256
