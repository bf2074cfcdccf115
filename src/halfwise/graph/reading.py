"""Read ONNX files, report how much of the work is done, and word what ONNX says of a graph."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import onnx
from google.protobuf.message import DecodeError

from halfwise.errors import CaseError
from halfwise.files import is_regular, mistaken, no_file, open_regular, unreadable
from halfwise.graph.serialisation import nodes_in
from halfwise.graph.weights import PROTOBUF_BYTES
from halfwise.progress import Weighed

PER_MB = 3.0
"""Weight of reading and hashing a megabyte."""
PARSING = 1.0
"""Weight of parsing a megabyte of protobuf."""
PER_NODE = 0.2
"""Weight of bringing a node into normal form. All three are milliseconds of a processor on models
of 5,000 nodes with 8 and with 522 MB (bench/repeated_blocks.py); only their ratio is used."""
_BLOCK_BYTES = 1 << 24
_HEAD_BYTES = 100
"""Leading bytes from which a file that is not ONNX may be recognised."""


def megabytes(size: int) -> float:
    """Return a number of bytes in megabytes."""
    return size / 1e6


def blocks(file: Path, work: Weighed) -> Iterator[bytes]:
    """Yield a file's bytes in order, as expected work.

    Raises:
        OSError: it cannot be read.
    """
    with open_regular(file) as stream:
        while block := stream.read(_BLOCK_BYTES):
            yield block
            work.did(PER_MB * megabytes(len(block)))


def read_proto(
    path: Path,
    work: Weighed | None = None,
    heard: Callable[[memoryview], object] = lambda _: None,
) -> onnx.ModelProto:
    """Return the unchanged content of an ONNX file, without external data.

    Args:
        path: The file.
        work: Receives the work of reading it; bringing it into normal form is expected then.
        heard: Called with the bytes of the file, block by block.

    Raises:
        CaseError: not a file, not ONNX, or truncated.
    """
    if not is_regular(path):
        raise CaseError(no_file(path), "Give the path of an ONNX model.")
    if (size := path.stat().st_size) > PROTOBUF_BYTES:
        raise CaseError(
            f"{path} is not an ONNX model: it has {size:,} bytes; a protobuf has at most "
            f"{PROTOBUF_BYTES:,}.",
            "Save larger models with their weights in a separate file (external data).",
        )
    work = work or Weighed()
    work.expect((PER_MB + PARSING) * megabytes(size))
    try:
        with open_regular(path) as stream:
            content = _content(stream, work, heard)
    except OSError as error:
        raise CaseError(unreadable(path, error), "Check its permissions.") from error
    proto, head = onnx.ModelProto(), bytes(content[:_HEAD_BYTES])
    try:
        proto.ParseFromString(content)
    except (DecodeError, ValueError) as error:
        raise _no_model(path, head) from error
    if not proto.graph.node and not proto.graph.output:
        raise _no_model(path, head)
    # Known only now, and before anything else ends: the work must not seem to be over.
    work.expect(normalising(proto))
    work.did(PARSING * megabytes(size))
    return proto


def normalising(proto: onnx.ModelProto) -> float:
    """Return the weight of bringing a model into normal form."""
    return PER_NODE * sum(1 for _ in nodes_in(proto.graph))


def _content(stream: BinaryIO, work: Weighed, heard: Callable[[memoryview], object]) -> bytearray:
    """Return the bytes of a file, of which there is no second copy in memory."""
    content, done = bytearray(os.fstat(stream.fileno()).st_size), 0
    with memoryview(content) as view:
        # A file object reads into a buffer, which the type of streams does not say.
        while read := stream.readinto(view[done : done + _BLOCK_BYTES]):  # type: ignore[attr-defined]
            heard(view[done : done + read])
            done += read
            work.did(PER_MB * megabytes(read))
    del content[done:]
    return content


def _no_model(path: Path, head: bytes) -> CaseError:
    what, hint = mistaken(head) or (
        "",
        "Give a file that onnx.save or an exporter wrote; if it is one, copy it again.",
    )
    told = f"{what}, not an ONNX model" if what else "not an ONNX model, or truncated or damaged"
    return CaseError(f"{path} is {told}.", hint)


_CONTEXT = re.compile(
    r"(?P<what>.*?)\.?\s*==> Context: Bad node spec(?: for node\. Name: (?P<name>.*?)\s*OpType: "
    r"(?P<op>\S+))?.*"
)
"""ONNX's checker about a node; older ones print the whole node after it (onnx, checker.cc)."""
_SIGNATURE = re.compile(r"Node(?:\((?P<name>.*?)\))? with schema\(.*?::\w+:(?P<since>\d+)\) has ")
"""How it begins if the number of inputs or outputs is wrong (onnx, defs/schema.cc)."""
_UNSORTED = re.compile(
    r"Nodes in a graph must be topologically sorted, however input '(?P<value>.*)' of node: "
    r"name: (?P<name>.*?)\s*OpType: (?P<op>\S+) is not output of any previous nodes\."
)


def said(error: Exception) -> str:
    """Return what ONNX says first, on one line, beginning with the node it is about.

    onnx-ir wraps ONNX's errors in its own.
    """
    first: BaseException = error
    while first.__cause__ is not None:
        first = first.__cause__
    if isinstance(first, UnicodeDecodeError):
        return "a name in it is not UTF-8, so the file is probably damaged"
    text = " ".join(str(first).split()) or type(first).__name__
    if unsorted := _UNSORTED.fullmatch(text):
        node = _named(unsorted["name"], unsorted["op"])
        return f"{node} reads {unsorted['value']!r}, which no node before it computes"
    found = _CONTEXT.fullmatch(text)
    if found is None:
        return text
    what, name, op = found["what"], found["name"], found["op"]
    if begin := _SIGNATURE.match(what):
        # Inside a body, the context is the node that has it.
        inner = f"{begin['name']!r} in it has " if name not in (None, begin["name"] or "") else ""
        what = (inner or "it has ") + what[begin.end() :]
    return f"{_named(name, op)}: {what}" if op else what


def _named(name: str | None, op: str) -> str:
    return f"node {name!r} ({op})" if name else f"a {op} without a name"
