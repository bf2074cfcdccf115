"""What the builder decided, and the file of an engine that holds it."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from tests.fake_tensorrt.faults import knob
from tests.fake_tensorrt.versions import VERSION

MAGIC = b"faketrt\x01"
_LENGTHS = struct.Struct(">II")


class Unreadable(Exception):
    """The bytes are no engine of this version."""


@dataclass(frozen=True)
class Plan:
    """What the builder decided.

    Attributes:
        version: Of TensorRT.
        typing: "weak" or "strong".
        low: "fp16", "bf16" or None; weak typing only.
        tf32: Whether FP32 products round their inputs.
        fp32: Nodes in FP32 (weak typing only).
        outputs: Names of the outputs.
        profiles: For each, input → (min, opt, max) of its shape, or of its values.
        fused: Blocks of nodes.
        detailed: Whether the inspector tells details.
        level: The builder's optimization level.
        number: Number of the build: as with TensorRT, no two builds give the same bytes.
    """

    version: str
    typing: str
    low: str | None
    tf32: bool
    fp32: Sequence[str]
    outputs: Sequence[str]
    profiles: Sequence[Mapping[str, Sequence[Sequence[int]]]] = ()
    fused: Sequence[Sequence[str]] = field(default_factory=lambda: knob("FUSED", []))
    detailed: bool = True
    level: int = 3
    number: int = 0


def pack_engine(plan: Plan, proto: bytes) -> bytes:
    """Return the file of an engine."""
    header = json.dumps(asdict(plan)).encode()
    return MAGIC + _LENGTHS.pack(len(header), len(proto)) + header + proto


def unpack_engine(data: bytes) -> tuple[Plan, bytes]:
    """Return the plan and the model of a file.

    Raises:
        Unreadable: it is not one, is truncated, or of another version.
    """
    start = len(MAGIC) + _LENGTHS.size
    if data[: len(MAGIC)] != MAGIC or len(data) < start:
        raise Unreadable(
            "1: [stdArchiveReader.cpp::StdArchiveReader::32] Error Code 1: Serialization "
            "(Serialization assertion magicTagRead == kMAGIC_TAG failed.Magic tag does not match)"
        )
    header, proto = _LENGTHS.unpack_from(data, len(MAGIC))
    if len(data) != start + header + proto:
        raise Unreadable(
            "1: [stdArchiveReader.cpp::StdArchiveReader::40] Error Code 1: Serialization "
            "(Serialization assertion sizeRead == static_cast<uint64_t>(mEnd - mCurrent) failed."
            "Size specified in header does not match archive size)"
        )
    plan = Plan(**json.loads(data[start : start + header]))
    if plan.version != VERSION:
        raise Unreadable(
            "6: The engine plan file is not compatible with this version of TensorRT, expecting "
            f"library version {VERSION} got {plan.version}, please rebuild."
        )
    return plan, data[start + header :]
