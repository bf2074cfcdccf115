"""TensorRT's versions: their notation, features, opsets and operators.

Opsets and operators are from onnx-tensorrt's docs/operators.md and docs/Changelog.md of each
version, the release notes of 11.2, and NVIDIA's "ONNX Opset Guide" for 11. Typing regimes, layers
and formats are from the headers and bindings of each version (docs/tensorrt-workers.md,
tests/bindings), trtexec's options from `samples/common/sampleOptions.cpp`. The worker runs without
this file and has its own bounds; a test compares them.
"""

import re
from collections.abc import Mapping
from typing import Literal

import onnx

from halfwise.errors import UsageError
from halfwise.formats import BF16, Format
from halfwise.graph.taken import taken
from halfwise.graph.types import is_own
from halfwise.records import Typing, WorkerInfo
from halfwise.tensorrt.worker import FIRST_UNKNOWN, OLDEST, api_of

Version = tuple[int, int]
"""Major and minor."""

ASKED: Version = (11, 0)
"""From this on, the answers of TensorRT for RTX count (graph/taken.py)."""
NEWEST_RTX = "1.7"
"""The newest version of TensorRT for RTX that was asked."""
RUN_VERSIONS = ("8.6.0",)
"""Versions that built and ran engines on an H200 (bench/gpu)."""
CHECKED_VERSIONS = ("1.7.1.116", "8.6.1", "10.0.1", "10.16.1.11", "11.4.0.106")
"""Versions whose Python bindings the worker's calls are checked against (tests/bindings)."""
DEFAULT_BUILDER = "10.16"
"""The last series with both typings; its strong recipes work for 11 too."""

Feature = Literal[
    "optimization levels",
    "native InstanceNorm",
    "strong typing",
    "bf16",
    "int64",
    "FP8",
    "INT4",
    "FP4",
    "optional zero points",
    "integer weights",
    "strong typing by default",
    "--staticPlugins",
    "--skipInference",
    "* in names",
    "several profiles",
]
FIRST_WITH: Mapping[Feature, Version] = {
    "optimization levels": (8, 6),
    "native InstanceNorm": (8, 6),
    "strong typing": (9, 0),
    "bf16": (9, 0),
    "int64": (10, 0),
    "FP8": (9, 0),
    "INT4": (10, 0),
    "FP4": (10, 8),
    "optional zero points": (9, 0),  # before, the importer asserts three inputs
    "integer weights": (10, 0),  # before, 8.4 says "invalid weights type of Int8"; 8.6 takes some
    "strong typing by default": (10, 0),
    # trtexec:
    "--staticPlugins": (8, 6),
    "--skipInference": (8, 6),
    "* in names": (9, 0),
    "several profiles": (10, 0),
}
"""The first version with each feature."""
FIRST_WITHOUT_WEAK: Version = (11, 0)


_TACTIC_SOURCES: Mapping[str, tuple[Version, Version]] = {
    **dict.fromkeys(("CUBLAS", "CUBLAS_LT", "CUDNN"), (OLDEST, (11, 0))),
    "EDGE_MASK_CONVOLUTIONS": (OLDEST, FIRST_UNKNOWN),
    "JIT_CONVOLUTIONS": ((8, 6), FIRST_UNKNOWN),
}
"""The first version that has a source, and the first that no longer has it."""


_LAST_OPSETS: Mapping[Version, int] = {
    (8, 5): 17,
    (9, 0): 19,
    (10, 0): 20,  # unpublished from 10.2 to 10.14
    (10, 15): 24,
    (11, 0): 25,
}
"""The last opset that the parser is known to read, from some versions on."""
FIRST_OPSETS: Mapping[Version, int] = {(8, 5): 1, (10, 0): 9}
"""The first one; before TensorRT 10, no lower bound is documented."""

OPERATORS = "https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md"
SINCE: Mapping[str, Version] = {
    **dict.fromkeys(("GroupNormalization", "LayerNormalization", "IsInf"), (8, 6)),
    "Hardmax": (9, 2),
    "DeformConv": (10, 1),
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), (10, 4)),
    "STFT": (10, 5),
    "Attention": (10, 14),
    **dict.fromkeys(("RMSNormalization", "RotaryEmbedding", "TensorScatter"), (10, 15)),
    "DFT": (11, 2),
}
"""Operators that 8.5 lacks, with the version that the changelog names."""
AT_THE_LATEST: Mapping[str, Version] = dict.fromkeys(("CastLike", "Gelu", "Mish"), (10, 15))
"""Missing in 8.5's list, present in this version's; the changelog names no version."""
WRITTEN = re.compile(
    r"[vV]?([0-9]{1,4})(?:\.([0-9]{1,4})(?:\.[0-9a-z]+)*(?:\+[0-9a-z][0-9a-z.]*)?)?"
)
"""What `version_of` reads: dotted numbers, with PEP 440's suffixes."""
_LOGGED = re.compile(
    r"TensorRT v(?P<major>\d\d?)(?P<minor>\d\d?)(?P<patch>\d\d)\]"
    r"|TensorRT version: (?P<plain>[\d.]+\d)"
)


def version_of(text: str) -> Version:
    """Return major and minor of a version, such as 11, v8.6 or 9.0.1.post12.

    Of TensorRT for RTX, which is below 2, those of the TensorRT with its API. Surrounding blanks
    are ignored; a missing minor version is 0.

    Raises:
        ValueError: `text` is not a version.
    """
    match = WRITTEN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a version")
    version: Version = api_of((int(match[1]), int(match[2] or 0)))
    return version


def text_of(version: Version) -> str:
    """Return a version as text, such as "8.6"."""
    return ".".join(map(str, version))


def logged_version(line: str) -> str | None:
    """Return the version named in a log line, such as "8.6.1"; None if there is none."""
    match = _LOGGED.search(line)
    if match is None:
        return None
    numbers = match["major"], match["minor"], match["patch"]
    return match["plain"] or ".".join(str(int(number)) for number in numbers)


def known_version(text: str, *, rtx: bool = False) -> Version:
    """Return major and minor of a version that a user names, as `version_of`.

    Args:
        text: A version such as "11", "v8.6", "8.6.1" or "9.3.0.post12.dev1".
        rtx: Whether it is one of TensorRT for RTX.

    Raises:
        UsageError: not a version, "8" (8.5 and 8.6 differ), older than 8.5, or 12 or later; of
            TensorRT for RTX older than 1.4.
    """
    try:
        version = version_of(text)
    except ValueError:
        version = (0, 0)
    if version == (8, 0) and "." not in text:
        raise UsageError("TensorRT 8.5 and 8.6 support different things.", "Give 8.5 or 8.6.")
    below_2 = text.strip().lower().startswith(("1.", "v1."))
    if not OLDEST <= version < FIRST_UNKNOWN or rtx != below_2:
        product, known = ("TensorRT for RTX", "1.4 to 1.7") if rtx else ("TensorRT", "8.5 to 11")
        raise UsageError(
            f"{text!r} is not a known version of {product}.",
            f"Give one with --trt-version: {known} are known.",
        )
    return version


def has(feature: Feature, version: Version | str | None) -> bool:
    """Return whether a version has a feature; False for None, a worker without TensorRT."""
    if isinstance(version, str):
        version = version_of(version)
    return version is not None and version >= FIRST_WITH[feature]


def since(feature: Feature) -> str:
    """Return the first version with a feature as text for a sentence, such as "9" or "10.8"."""
    major, minor = FIRST_WITH[feature]
    return f"{major}.{minor}" if minor else str(major)


def tactic_sources(version: Version) -> tuple[str, ...]:
    """Return the names of a version's `TacticSource` members."""
    return tuple(n for n, (since, until) in _TACTIC_SOURCES.items() if since <= version < until)


def lowest_opset(version: Version) -> int:
    """Return the lowest opset that this version's parser reads."""
    return max(first for since, first in FIRST_OPSETS.items() if since <= version)


def highest_opset(version: Version) -> int:
    """Return the highest opset that this version's parser certainly reads."""
    return max(last for since, last in _LAST_OPSETS.items() if since <= version)


def support(op: str) -> str:
    """Return a sentence on TensorRT's support for operator `op`; empty if it is not ONNX's."""
    if op in SINCE:
        return f"TensorRT {text_of(SINCE[op])} and later have {op}."
    if op in AT_THE_LATEST:
        since = text_of(AT_THE_LATEST[op])
        return f"TensorRT {since} and later have {op}; earlier versions may have it too."
    if op in taken().never:
        return f"No TensorRT up to {text_of(ASKED)} has {op}: rewrite it, or write a plugin."
    if onnx.defs.has(op):
        return f"TensorRT supports {op} with restrictions, which its operator list names."
    if any(is_own(domain, op) for domain in ("", "com.microsoft")):
        return "It is one of ONNX Runtime's: give TensorRT the file from before its optimizer."
    return ""


AMPERE = 8.0
"""Lowest compute capability with BF16 and TF32."""


def has_tf32(worker: WorkerInfo) -> bool:
    """Return whether a GPU has TF32; one of unknown capability is assumed to."""
    return float(worker.compute_capability or AMPERE) >= AMPERE


def regime(
    worker: WorkerInfo, wanted: Typing | None, fmt: Format, *, beside: bool = False
) -> Typing:
    """Return the typing regime for builds: `wanted`, or the version's default.

    With `beside`, nodes may be BF16 in addition to the low format, which only strong typing can
    express.

    Raises:
        UsageError: the worker's TensorRT or GPU lacks the regime or the low format.
    """
    version = f"{worker.product} {worker.tensorrt}"
    if wanted is not None and wanted not in worker.typing:
        raise UsageError(
            f"{version} has no {wanted} typing.",
            f"Use --typing {worker.typing[0]}, or another worker.",
        )
    typing = wanted or worker.typing[0]
    if beside or fmt == BF16:
        without = "no --allow bf16" if beside else "--to fp16"
        if not has("bf16", worker.tensorrt):
            raise UsageError(
                f"{version} has no BF16.", f"Use {without}, or TensorRT {since('bf16')} or later."
            )
        if float(worker.compute_capability or AMPERE) < AMPERE:
            raise UsageError(
                f"{worker.gpu} (compute capability {worker.compute_capability}) has no BF16.",
                f"Use {without}, or a GPU of compute capability 8.0 or more.",
            )
    if beside and typing == "weak":
        raise UsageError(
            "In weak typing the builder alone chooses between FP16 and BF16.",
            "Use --typing strong, which TensorRT 9.0 and later have, or no --allow bf16.",
        )
    return typing
