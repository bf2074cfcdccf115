"""What is a fact of a TensorRT version: which are known, what each reads and can be asked for.

Opsets are from onnx-tensorrt's docs/operators.md of each version, and NVIDIA's "ONNX Opset Guide"
for 11. Typing regimes and formats are from the headers of each version (docs/tensorrt.md).
"""

from halfwise.errors import UsageError
from halfwise.records import version_of
from halfwise.tensorrt.operators import AT_THE_LATEST, NEVER, SINCE

Version = tuple[int, int]

OLDEST: Version = (8, 5)
OLDEST_PARSER: Version = (8, 0)
"""The oldest whose parser is known; nothing else is known of it."""
FIRST_UNKNOWN: Version = (12, 0)
FIRST_STRONG: Version = (9, 0)
FIRST_BF16: Version = (9, 0)
FIRST_WILD: Version = (9, 0)
"""The first whose trtexec knows `*` within a name."""
FIRST_WITHOUT_WEAK: Version = (11, 0)

_OPSETS: tuple[tuple[Version, int, int | None], ...] = (
    ((8, 0), 1, 13),
    ((8, 4), 1, 17),
    ((9, 0), 1, 19),
    ((10, 0), 9, 20),
    ((10, 2), 9, None),
    ((10, 15), 9, 24),
    ((11, 0), 9, 25),
)
"""From which version on, the first and last opset that the parser takes; None where unpublished.

Before 10, none is said to be too early.
"""

DEFAULT_VERSION = "10.0"
"""Where nobody names one: what it reads, all later versions read too."""


def known_version(text: str, *, oldest: Version = OLDEST) -> Version:
    """Return major and minor of a version that a user names; a minor one not given is 0.

    Args:
        text: Such as "11", "v8.6", "8.6.1" or "9.3.0.post12.dev1".
        oldest: The first version that has what it is asked for.

    Raises:
        UsageError: it is no version, "8" (8.5 and 8.6 differ), older than `oldest`, or 12 or later.
    """
    first = ".".join(map(str, oldest))
    try:
        found = version_of(text)
    except ValueError:
        found = (0, 0)
    if found == (8, 0) and "." not in text:
        raise UsageError("TensorRT 8.5 and 8.6 differ in what they take.", "Give 8.5 or 8.6.")
    if not oldest <= found < FIRST_UNKNOWN:
        raise UsageError(
            f"{text!r} is no version of TensorRT that is known here.",
            f"Give such as 8.6, 10.13 or 11; from {first} to 11 are known (--trt-version).",
        )
    return found


def opsets(version: Version) -> tuple[int, int | None]:
    """Return the first and the last opset that the parser of a version takes; None: unknown."""
    return next((a, b) for since, a, b in reversed(_OPSETS) if version >= since)


def highest_opset(version: Version) -> int:
    """Return the highest opset that this version's parser (8.0 or later) reads for sure."""
    return max(last for since, _, last in _OPSETS if since <= version and last is not None)


def has_operator(op: str, version: Version) -> bool:
    """Return whether this version's parser is known to take the operator."""
    since = SINCE.get(op) or AT_THE_LATEST.get(op)
    return op not in NEVER and (since is None or version_of(since) <= version)
