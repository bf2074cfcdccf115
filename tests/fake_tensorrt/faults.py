"""What goes wrong, when and how: `HALFWISE_FAKE_TENSORRT_FAULTS` is a JSON list of faults."""

import ctypes
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.fake_tensorrt.regions import Region


class Failure(Exception):
    """TensorRT logs this line and returns nothing."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        at: Where: "import", "parse", "build", "save" (at the end of a build), "deserialise",
            "context", "run", or "again": a run of a context that has run before.
        do: What: "segv", "abort", "kill", "hang", "exit", "disconnect" (the worker's supervisor is
            killed, as a lost connection does), "garbage" (bytes on standard output, then all goes
            on), "memory" (out of memory), "raise" (an exception), "device" (the engine is of
            another GPU), "address" (a kernel's fault ends the CUDA context), "foreign" (no
            implementation for a fused block), or "wait" (until the folder of counts has a file
            "go", then all goes on).
        on: The calls at that place that it strikes, counted from 1; empty for all.
        when: What must hold for the engine: "low", "tf32", "int8", "typing" and "level"
            equal, or all of "kept" FP32 by constraint.
        nodes: The block of "foreign".
        among: The nodes of the block that matter to `fails`; none for all of them.
        fails: "foreign" strikes where "some", not all, of these are constrained, or "any".
        region: What a network must hold, at "build"; None where it does not matter. With "foreign"
            it is the block, whatever is constrained.
    """

    at: str
    do: str
    on: tuple[int, ...] = ()
    when: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    among: tuple[str, ...] = ()
    fails: str = "some"
    region: Region | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Fault":
        """Return the fault that JSON tells."""
        region = given.get("region")
        return cls(**{**given, "region": region and Region(**region)})

    def holds(self, about: Mapping[str, Any]) -> bool:
        """Return whether what must hold does."""
        if self.region is not None and not self.places(about):
            return False
        return self._holds(about)

    def places(self, about: Mapping[str, Any]) -> list[list[str]]:
        """Return the names of the nodes of each place where a network holds the region."""
        if self.region is None or "graph" not in about:
            return []
        found = self.region.places(about["graph"], set(about["outputs"]), about["level"])
        return [[str(node.name) for node in nodes] for nodes in found]

    def _holds(self, about: Mapping[str, Any]) -> bool:
        kept = set(about.get("kept", ()))
        wanted = dict(self.when)
        if not set(wanted.pop("kept", ())) <= kept:
            return False
        if any(about.get(key) != value for key, value in wanted.items()):
            return False
        if self.do != "foreign" or self.region is not None:
            return True
        among = set(self.among or self.nodes)
        return bool(kept & among) and (self.fails == "any" or not among <= kept)


def knob_text(name: str, otherwise: str) -> str:
    """Return the variable HALFWISE_FAKE_TENSORRT_`name`."""
    return os.environ.get(f"HALFWISE_FAKE_TENSORRT_{name}") or otherwise


def knob(name: str, otherwise: Any) -> Any:
    """Return the JSON of the variable HALFWISE_FAKE_TENSORRT_`name`."""
    given = knob_text(name, "")
    return json.loads(given) if given else otherwise


_counts: dict[str, int] = {}


def count(place: str) -> int:
    """Return how often this has been called for `place`, this call included."""
    folder = os.environ.get("HALFWISE_FAKE_TENSORRT_COUNTS")
    if folder is None:
        return tick(place)
    with Path(folder, place).open("ab", buffering=0) as file:
        file.write(b".")
        return file.tell()


def tick(what: str) -> int:
    """Return how often this process has called this for `what`, this call included."""
    _counts[what] = _counts.get(what, 0) + 1
    return _counts[what]


def strike(place: str, about: Mapping[str, Any] | None = None) -> None:
    """Do what the faults say of the next call at `place`.

    Raises:
        Failure: TensorRT fails in an orderly way.
    """
    number = count(place)
    about = about or {}
    for fault in map(Fault.of, knob("FAULTS", [])):
        if fault.at == place and (not fault.on or number in fault.on) and fault.holds(about):
            nodes = next(iter(fault.places(about)), fault.nodes)
            _ACTS[fault.do](replace(fault, nodes=tuple(nodes)))


def _segv(_: Fault) -> None:
    ctypes.string_at(0)


def _abort(_: Fault) -> None:
    os.abort()


def _kill(_: Fault) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang(_: Fault) -> None:
    while True:
        time.sleep(3600)


def _wait(_: Fault) -> None:
    while not Path(os.environ["HALFWISE_FAKE_TENSORRT_COUNTS"], "go").exists():
        time.sleep(0.01)


def _exit(_: Fault) -> None:
    os._exit(3)


def _disconnect(fault: Fault) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    _hang(fault)


def _garbage(_: Fault) -> None:
    # What a C++ library prints: no regard for encodings, lines or who listens.
    os.write(1, b"\x00\xffHALFWISE\xff\x01\x00\x00 not a frame \xff\xfe\nhalf a line")


def _memory(_: Fault) -> None:
    raise Failure(
        "2: [virtualMemoryBuffer.cpp::resizePhysical::145] Error Code 2: OutOfMemory (no further "
        "information)"
    )


def _raise(_: Fault) -> None:
    raise RuntimeError("an exception out of the bindings")


def _device(_: Fault) -> None:
    raise Failure(
        "6: The engine plan file is generated on an incompatible device, expecting compute 8.6 got "
        "compute 9.0, please rebuild."
    )


def _address(_: Fault) -> None:
    ctypes.CDLL(os.environ["HALFWISE_CUDA_LIBRARY"]).halfwise_lose_context()


def _foreign(fault: Fault) -> None:
    block = f"{{ForeignNode[{fault.nodes[0]}...{fault.nodes[-1]}]}}"
    raise Failure(
        "10: [optimizer.cpp::computeCosts::3869] Error Code 10: Internal Error (Could not find any "
        f"implementation for node {block}.)"
    )


_ACTS = {
    "segv": _segv,
    "abort": _abort,
    "kill": _kill,
    "hang": _hang,
    "exit": _exit,
    "disconnect": _disconnect,
    "garbage": _garbage,
    "memory": _memory,
    "raise": _raise,
    "device": _device,
    "address": _address,
    "foreign": _foreign,
    "wait": _wait,
}
