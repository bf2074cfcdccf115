"""Transfer files to and from a worker by their hashes; set rejected timing caches aside."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from shutil import disk_usage
from typing import Any, BinaryIO

import onnx
from google.protobuf.message import DecodeError

from halfwise.errors import CaseError, RunFailed
from halfwise.graph.protobufs import external_files
from halfwise.records import BuildConfig
from halfwise.store import refuse_irregular
from halfwise.tensorrt.worker.answers import Expected, chunk_of

CHUNK = 8 << 20
"""Bytes per frame."""

Ask = Callable[[Mapping[str, Any], bytes, Expected | None], tuple[dict[str, Any], bytes]]
"""Sends a request; returns header and payload of its result, checked against the expected answer.

The default is the operation's own check."""


class Damaged(Exception):
    """A file arrived with a hash other than its own."""


@dataclass(frozen=True)
class ModelFiles:
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
    model: Path, config: BuildConfig, timing_cache: Path | None
) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return the request for a build, and the files that it needs by their SHA-256.

    Args:
        model: ONNX file; its external data lies next to it.
        config: Settings of the engine.
        timing_cache: File to include if it exists.

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
        "config": config.model_dump(mode="json", exclude={"model_sha256"}),
        "timing_cache": None,
    }
    if timing_cache is not None and timing_cache.exists():
        request["timing_cache"] = file_sha256(timing_cache)
        needed[request["timing_cache"]] = timing_cache
    return request, needed


def put(ask: Ask, sha256: str, path: Path) -> None:
    """Send a file in chunks; the worker checks its hash."""
    total, offset = path.stat().st_size, 0
    for chunk in _chunks(path):
        last = offset + len(chunk) >= total
        ask({"op": "put", "sha256": sha256, "offset": offset, "last": last}, chunk, None)
        offset += len(chunk)


def get(ask: Ask, sha256: str, size: int, path: Path) -> None:
    """Fetch a file of `size` bytes to `path`, by renaming a temporary file in the same folder.

    Raises:
        Damaged: it arrives with another hash; nothing is left of it.
        RunFailed: there is no room for it.
        OSError: it cannot be written.
    """
    free = disk_usage(path.parent).free
    if size > free:
        raise RunFailed(
            f"The worker sends a file of {size} bytes, but {path.parent} has room for {free}.",
            "Free some space, or give another folder.",
        )
    descriptor, name = tempfile.mkstemp(prefix=".halfwise.", dir=path.parent)
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _receive(ask, sha256, size, file)
        # `mkstemp` makes the file unreadable for others.
        os.umask(mask := os.umask(0))
        partial.chmod(0o666 & ~mask)
        refuse_irregular(path, "The file")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _receive(ask: Ask, sha256: str, size: int, file: BinaryIO) -> None:
    digest = hashlib.sha256()
    for offset in range(0, max(1, size), CHUNK):
        request = {"op": "get", "sha256": sha256, "offset": offset, "length": CHUNK}
        _, chunk = ask(request, b"", chunk_of(size, offset, CHUNK))
        digest.update(chunk)
        file.write(chunk)
    if digest.hexdigest() != sha256:
        raise Damaged


def _chunks(path: Path) -> Iterator[bytes]:
    """Yield a file in chunks; one empty chunk if it is empty."""
    with path.open("rb") as file:
        chunk = file.read(CHUNK)
        yield chunk
        while chunk := file.read(CHUNK):
            yield chunk


def keep_aside(path: Path) -> str:
    """Move a timing cache aside, and return a sentence that says so.

    trtexec warns and overwrites it, but a cache can take hours to build. It becomes
    NAME.old, or NAME.old2 and so on if that exists: nothing is overwritten. If another process has
    removed it meanwhile, that is no error.
    """
    names = (f"{path.name}.old{number if number > 1 else ''}" for number in count(1))
    aside = next(found for name in names if not (found := path.with_name(name)).exists())
    try:
        path.rename(aside)
    except FileNotFoundError:
        return f"TensorRT did not take the timing cache {path}."
    return (
        f"TensorRT did not take the timing cache {path}: it is damaged, from another version or "
        f"GPU, or holds kernels that this version cannot read back. It is {aside} now, and a new "
        "one was written."
    )
