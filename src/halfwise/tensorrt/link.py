"""Start a worker on demand; exchange requests and files with it.

Whatever keeps a request from its result is one `EngineFailed`, or the error for a refusal.
"""

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from msgspec import Struct

from halfwise.errors import BackendMissing, CaseError
from halfwise.graph.protobufs import external_files
from halfwise.progress import interruption
from halfwise.records import BuildConfig, WorkerInfo
from halfwise.tensorrt import failures
from halfwise.tensorrt.answers import Unfit, worker_info
from halfwise.tensorrt.failures import NoAnswer
from halfwise.tensorrt.transport import (
    KILL_SECONDS,
    LAST_LINES,
    LONGEST_LINE,
    Connection,
    Ended,
    Lost,
    worker_source,
)
from halfwise.tensorrt.worker import AT_LAYER

CHUNK = 8 << 20
"""Bytes per frame."""


class ModelFiles(Struct, frozen=True):
    """An ONNX file and its external data.

    Attributes:
        main: Name of the ONNX file.
        paths: Every file by its name relative to the model's folder, the ONNX file first, with
            symbolic links resolved.
        hashes: SHA-256 of every file, likewise.
        sha256: SHA-256 of all files in sequence, as in `graph.model.Network`.
    """

    main: str
    paths: dict[str, Path]
    hashes: dict[str, str]
    sha256: str


def model_files(path: Path) -> ModelFiles:
    """Return the files of the ONNX model at `path`.

    Raises:
        CaseError: it cannot be read, or external data is missing or lies outside its folder.
    """
    try:
        proto = onnx.load(path, load_external_data=False)
    except (OSError, DecodeError) as error:
        raise CaseError(f"{path} cannot be read as ONNX: {error}.", "Give an ONNX file.") from error
    paths = {path.name: path, **external_files(proto, path)}
    whole, hashes = hashlib.sha256(), {}
    for name, file in paths.items():
        single = hashlib.sha256()
        for chunk in _chunks(file):
            single.update(chunk)
            whole.update(chunk)
        hashes[name] = single.hexdigest()
    return ModelFiles(path.name, paths, hashes, whole.hexdigest())


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def build_request(
    model: Path, config: BuildConfig, *, cached: bool
) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return the request for a build, and the files that it needs by their SHA-256.

    Args:
        model: ONNX file; its external data lies next to it.
        config: Settings of the engine.
        cached: Whether timings of earlier builds on this GPU are used, and kept for later ones.

    Raises:
        CaseError: see `model_files`.
    """
    files = model_files(model)
    needed = {files.hashes[name]: path for name, path in files.paths.items()}
    request: dict[str, Any] = {
        "op": "build",
        "model": {
            "main": files.main,
            "files": [{"name": name, "sha256": sha} for name, sha in files.hashes.items()],
        },
        "config": {n: value for n, value in config.to_dict().items() if n != "model_sha256"},
        "cached": cached,
    }
    return request, needed


def _chunks(path: Path) -> Iterator[bytes]:
    """Yield a file in chunks; one empty chunk if it is empty."""
    with path.open("rb") as file:
        chunk = file.read(CHUNK)
        yield chunk
        while chunk := file.read(CHUNK):
            yield chunk


_TRANSFER_SECONDS = 300.0
"""Limit for one chunk of a file: 8 MiB take 1.5 minutes at 100 kB/s."""
_COMPLAINTS = 200
"""First warnings and errors of a build that a record keeps. Our choice."""

_LONG = ("build", "time", "inspect")
"""Operations that may take minutes."""


class Log:
    """Keeps one request's last lines and complaints.

    Attributes:
        last: The last lines, each prefixed with its severity.
        complaints: Warnings and errors, likewise.
    """

    def __init__(self) -> None:
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self.complaints: list[str] = []
        self._started = time.monotonic()

    def hear(self, header: Mapping[str, Any]) -> None:
        """Take the header of a frame."""
        if header.get("kind") == "log":
            self._take(str(header.get("severity")), str(header.get("text")))
        elif header.get("kind") == "started":
            self._started = time.monotonic()

    def _take(self, severity: str, text: str) -> None:
        line = f"{severity}: {text[:LONGEST_LINE]}"
        if AT_LAYER in line and self.last and AT_LAYER in self.last[-1]:
            self.last.pop()  # only the last layer shows where it ended
        self.last.append(line)
        serious = severity in ("warning", "error", "internal_error")
        if serious and len(self.complaints) < _COMPLAINTS:
            self.complaints.append(line)

    @property
    def seconds(self) -> float:
        """Since the work began."""
        return time.monotonic() - self._started


class Link:
    """A worker's name and command, and its process while one runs.

    Attributes:
        name: Its name in messages.
        info: What it reported at its last start.
        cache: The folder where it keeps files, in its own file system.
    """

    info: WorkerInfo
    cache: str

    def __init__(self, name: str, command: Sequence[str], limit: float) -> None:
        """Store the settings without starting the process.

        Args:
            name: Its name in messages.
            command: The command that starts it.
            limit: Seconds for it to start, and to answer requests without work.
        """
        self.name, self._command, self._limit = name, tuple(command), limit
        self._connection: Connection | None = None
        self._there: set[str] = set()

    def connect(self, ends: Callable[[], bool] = lambda: False) -> None:
        """Start the process and ask what is available there.

        Raises:
            BackendMissing: it does not answer, or not as a worker does.
            Ended: `ends` returned true first.
        """
        self._there.clear()  # a container's cache vanishes when it ends
        try:
            self._connection = Connection(self._command, worker_source())
        except OSError as error:
            reason = f"{error.filename or self._command[0]}: {error.strerror}"
            raise failures.no_answer(self.name, self._command, reason, ()) from error
        try:
            answer, _ = self._connection.ask({"op": "hello"}, limit=self._limit, ends=ends)
        except Ended:
            raise
        except Lost as lost:
            reason = lost.reason
            raise failures.no_answer(self.name, self._command, reason, lost.printed) from lost
        except Unfit as unfit:
            raise BackendMissing(*failures.unfit(self.name, "hello", str(unfit))) from unfit
        except BaseException:
            self.close(patience=0.0)
            raise
        if answer["kind"] != "result":
            self.close()
            if answer["kind"] == "error":
                raise failures.no_answer(self.name, self._command, str(answer["message"]), ())
            died = failures.death(answer, "Importing TensorRT", None)
            raise BackendMissing(f"Worker {self.name} cannot be used: {died.message}")
        self.info, self.cache = worker_info(self.name, self._command, answer), answer["cache"]

    def close(self, patience: float = KILL_SECONDS) -> None:
        """End the process; it has `patience` seconds to exit by itself."""
        if self._connection is not None:
            self._connection.close(patience)

    @property
    def process_id(self) -> int | None:
        """ID of the command's process; None if none runs."""
        running = self._connection is not None and not self._connection.closed
        return self._connection.process_id if running and self._connection else None

    def ask(
        self,
        request: Mapping[str, Any],
        payload: bytes = b"",
        *,
        what: str = "The request",
        timeout: float | None = None,
        limit: float | None = None,
        log: Log | None = None,
        explained: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    ) -> tuple[dict[str, Any], bytes]:
        """Return header and payload of the result, from a fresh process if the last is lost.

        What may take minutes ends on Ctrl-C.

        Args:
            request: `op` and its arguments.
            payload: Its bytes.
            what: The activity, such as "The run", for messages.
            timeout: Seconds for the work, which the worker enforces.
            limit: Seconds for the connection to answer; by default somewhat more.
            log: Hears what comes before the result.
            explained: Returns a refusal with more than the worker knows.

        Raises:
            EngineFailed: it crashed, hung, was ended, or the connection is lost.
            HalfwiseError: the error for a refusal.
            WorkerEnded: it sends something invalid.
        """
        log = Log() if log is None else log
        try:
            answer, data = self._answer(request, payload, timeout, limit, log)
        except Unfit as unfit:
            message, hint = failures.unfit(self.name, request["op"], str(unfit))
            raise failures.WorkerEnded(message, hint) from unfit
        except Lost as lost:
            raise failures.lost_connection(self.name, lost, log.last) from lost
        if answer["kind"] == "died":
            raise failures.death(answer, what, timeout, log.last)
        if answer["kind"] == "error":
            raise failures.refusal(explained(answer), log.last)
        return {key: answer[key] for key in answer if key not in ("id", "kind")}, data

    def _answer(
        self,
        request: Mapping[str, Any],
        payload: bytes,
        timeout: float | None,
        limit: float | None,
        log: Log,
    ) -> tuple[Mapping[str, Any], bytes]:
        over, is_long = interruption(), request["op"] in _LONG

        def ends() -> bool:
            return is_long and over.asked

        if ends():
            raise Ended("it was ended", ())
        if self._connection is None or self._connection.closed:
            try:
                self.connect(ends)
            except NoAnswer as error:
                raise Lost(f"it does not restart: {error.why}", ()) from error
            except BackendMissing as error:
                raise Lost(error.message.rstrip("."), ()) from error
        assert self._connection is not None
        return self._connection.ask(
            request, payload, timeout=timeout, limit=limit, heard=log.hear, ends=ends
        )

    def need(self, files: Mapping[str, Path], ends: Callable[[], bool] = lambda: False) -> None:
        """Send the missing ones of `files`, keyed by SHA-256; each is sent once.

        Raises:
            EngineFailed: the connection is lost, or `ends` returned true.
        """
        # A lost connection invalidates what is known to be there, so check this first.
        if self._connection is not None and self._connection.closed:
            self._there.clear()
        unknown = [sha256 for sha256 in files if sha256 not in self._there]
        if not unknown:
            return
        request = {"op": "have", "hashes": unknown}
        for sha256 in self.exchange(request)[0]["missing"]:
            self._put(sha256, files[sha256], ends)
        self._there.update(unknown)

    def _put(self, sha256: str, path: Path, ends: Callable[[], bool]) -> None:
        """Send a file in chunks; the worker checks its hash."""
        total, offset = path.stat().st_size, 0
        for chunk in _chunks(path):
            if ends():
                raise failures.lost_connection(self.name, Ended("it was ended", ()), ())
            last = offset + len(chunk) >= total
            self.exchange({"op": "put", "sha256": sha256, "offset": offset, "last": last}, chunk)
            offset += len(chunk)

    def take(self, sha256: str, size: int, path: Path) -> None:
        """Fetch the worker's file of `size` bytes to `path`; nothing is left of a damaged one.

        Raises:
            EngineFailed: the connection is lost, or the worker no longer has the file.
            OSError: it cannot be written: there is no room, say.
            WorkerEnded: it arrives with another hash.
        """
        digest = hashlib.sha256()
        partial = path.with_name(f".halfwise.{os.getpid()}.{path.name}")
        try:
            with partial.open("wb") as file:
                for offset in range(0, max(1, size), CHUNK):
                    request = {"op": "get", "sha256": sha256, "offset": offset, "length": CHUNK}
                    _, chunk = self.exchange(request)
                    digest.update(chunk)
                    file.write(chunk)
            if digest.hexdigest() != sha256:
                self.close(patience=0.0)
                raise failures.WorkerEnded(
                    f"Worker {self.name} sent a damaged file: its SHA-256 is not {sha256}.",
                    "Check the connection and the worker's disk.",
                )
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def exchange(
        self, request: Mapping[str, Any], data: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        """Send a request that takes no work."""
        limit = _TRANSFER_SECONDS if data or request["op"] == "get" else self._limit
        return self.ask(request, data, limit=limit)
