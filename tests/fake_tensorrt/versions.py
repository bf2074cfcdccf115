"""Which TensorRT is played: enumerations and attributes are those of its real bindings.

They come from the snapshots in `tests/bindings`, so the fake cannot have what the version lacks.
"""

import enum
import json
import os
from pathlib import Path
from typing import Any

VERSION = os.environ.get("HALFWISE_FAKE_TENSORRT", "8.6.1")
NUMBERS = tuple(int(part) for part in VERSION.split("."))
NUMBERS = (11, 1) if NUMBERS < (2,) else NUMBERS
"""Of the TensorRT that behaves alike."""
_SNAPSHOTS = Path(__file__).resolve().parents[1] / "bindings"


def _snapshot():
    found = next(iter(sorted(_SNAPSHOTS.glob(f"{VERSION}*.json"))), None)
    if found is None:
        raise ImportError(f"there is no snapshot of the bindings of TensorRT {VERSION}")
    return json.loads(found.read_text(encoding="utf-8"))


SNAPSHOT = _snapshot()


class Member(enum.Enum):
    """As pybind11 makes them: a number by `int()`, but no number."""

    def __int__(self):
        return int(self.value)

    def __index__(self):
        return int(self.value)


def enumeration(name) -> Any:
    """Return an enumeration by its name, such as "ILogger.Severity"."""
    members = sorted(SNAPSHOT["enums"][name].items(), key=lambda item: int(item[1]))
    kind: Any = Member
    return kind(name.rpartition(".")[2], dict(members))


def _described(name):
    """Return names of all attributes of a class of the snapshot, and of those that can be set."""
    entry = SNAPSHOT["classes"][name]
    there = {*entry.get("methods", ()), *entry.get("read_only", ()), *entry.get("settable", ())}
    settable = set(entry.get("settable", ()))
    for base in entry.get("bases", ()):
        more, also = _described(base)
        there, settable = there | more, settable | also
    return there, settable


class Callback:
    """A class to derive from, whose `__init__` must be called as that of any bound class."""

    def __init__(self):
        self._made = True

    @classmethod
    def check(cls, given):
        if given is not None and not getattr(given, "_made", False):
            raise TypeError(f"{cls.__name__}.__init__() must be called when overriding __init__")
        return given


def bound(kind):
    """Take from a class what its namesake lacks in this version, and mind what can be set.

    A class that the version lacks altogether stays as it is; `api` leaves it out.
    """
    if kind.__name__ not in SNAPSHOT["classes"]:
        return kind
    there, settable = _described(kind.__name__)
    for name in [n for n in vars(kind) if not n.startswith("_") and n not in there]:
        delattr(kind, name)

    def set_attribute(self, name, value):
        if not name.startswith("_") and name not in settable:
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r} to set")
        object.__setattr__(self, name, value)

    kind.__setattr__ = set_attribute
    return kind
