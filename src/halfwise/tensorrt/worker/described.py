"""Read what a worker and its engines report, and pack arrays for an engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import UsageError
from halfwise.records import (
    EngineTensor,
    NetworkLayer,
    Profile,
    ShapeRange,
    TensorName,
    WorkerInfo,
)
from halfwise.tensorrt.fitting import Port, dtype_of, fit_inputs
from halfwise.tensorrt.versions import (
    CHECKED_VERSIONS,
    NEWEST_CHECKED,
    RUN_VERSIONS,
    text_of,
    version_of,
)
from halfwise.wording import stopped

_LONGEST = 500
"""Largest number of characters of the reason why a worker cannot build."""


@dataclass(frozen=True)
class Description:
    """An engine's description of itself.

    Attributes:
        tensors: Inputs and outputs.
        profiles: Number of optimization profiles.
        layers: Number of layers after fusion.
        device_bytes: Device memory of an execution context.
    """

    tensors: tuple[EngineTensor, ...]
    profiles: int
    layers: int
    device_bytes: int


def described(answer: Mapping[str, Any]) -> Description:
    """Return the description in a `describe` answer."""
    tensors = tuple(
        EngineTensor(
            name=TensorName(io["name"]),
            is_input=io["mode"] == "input",
            dtype=io["dtype"],
            shape=tuple(io["shape"]),
            shape_tensor=io["shape_tensor"],
            limits=tuple(ShapeRange.model_validate(p) for p in io["profiles"] if p),
        )
        for io in answer["io"]
    )
    return Description(tensors, answer["profiles"], answer["layers"], answer["device_bytes"])


def network_layers(entries: Sequence[Sequence[Any]]) -> tuple[NetworkLayer, ...]:
    """Return the layers before fusion from a `build` answer."""
    return tuple(
        NetworkLayer(name=name, type=kind, nodes=tuple(nodes), constrained=constrained)
        for name, kind, nodes, constrained in entries
    )


def profiles_of(engine: Description) -> tuple[Profile, ...]:
    """Return an engine's optimization profiles; none if no input can vary.

    Values of a shape tensor are left out unless all are reported: of two elements, 8.6.0 reported
    the first (H200).
    """
    inputs = [t for t in engine.tensors if t.is_input and len(t.limits) == engine.profiles]
    chosen = [t for t in inputs if (_told(t) if t.shape_tensor else -1 in t.shape)]
    if not chosen:
        return ()
    return tuple(
        Profile(
            shapes={t.name: t.limits[index] for t in chosen if not t.shape_tensor},
            values={t.name: t.limits[index] for t in chosen if t.shape_tensor},
        )
        for index in range(engine.profiles)
    )


def _told(tensor: EngineTensor) -> bool:
    return all(len(limits.opt) == prod(tensor.shape) for limits in tensor.limits)


def worker_info(name: str, command: Sequence[str], answer: Mapping[str, Any]) -> WorkerInfo:
    """Return the facts in a `hello` answer of worker `name`, started by `command`."""
    gpu = answer["gpus"][0] if answer["gpus"] else {}
    environment = answer["environment"]
    info = WorkerInfo(
        name=name,
        command=tuple(command),
        tensorrt=answer["tensorrt"],
        python=answer["python"],
        gpu=gpu.get("name"),
        compute_capability=gpu.get("compute_capability"),
        driver=answer["driver"],
        memory_bytes=gpu.get("memory"),
        free_bytes=gpu.get("free"),
        typing=tuple(answer["typing"]),
        tactic_sources=tuple(answer["tactic_sources"]),
        tf32_override=environment.get("NVIDIA_TF32_OVERRIDE"),
        trouble=_trouble(answer),
    )
    return info.model_copy(update={"notes": tuple(_notes(info, answer))})


def check_tactic_sources(info: WorkerInfo, names: Sequence[str]) -> None:
    """Raise UsageError if the worker's TensorRT lacks one of the tactic sources."""
    if unknown := [name for name in names if name not in info.tactic_sources]:
        raise UsageError(
            f"TensorRT {info.tensorrt} has no tactic source {', '.join(unknown)}.",
            f"--engine tactic-sources takes {', '.join(info.tactic_sources)}.",
        )


def _trouble(answer: Mapping[str, Any]) -> str:
    found = [
        answer[key]["message"][:_LONGEST] for key in ("import_error", "cuda_error") if key in answer
    ]
    return " ".join(map(stopped, found))


def _notes(info: WorkerInfo, answer: Mapping[str, Any]) -> list[str]:
    notes = []
    if info.tensorrt is not None:
        notes.append(_standing(info.tensorrt))
        there = [word for key, word in _FEATURES.items() if answer["features"].get(key)]
        notes.append(f"has {', '.join(there)}" if there else "has none of the newer features")
    if info.tf32_remark:
        notes.append(info.tf32_remark.rstrip("."))
    notes.append(f"keeps files in {answer['cache']} on {answer['host']}")
    return notes


_FEATURES = {
    "bf16": "BF16",
    "progress": "progress",
    "debug": "debug tensors",
    "layer_norm": "LayerNorm layers",
    "optimization_level": "optimization levels",
}


def _standing(version: str) -> str:
    if version in RUN_VERSIONS:
        return f"halfwise was run with TensorRT {version}"
    if version in CHECKED_VERSIONS:
        return f"halfwise was checked against the bindings of TensorRT {version}, not run with it"
    if version_of(version) > NEWEST_CHECKED:
        newest = text_of(NEWEST_CHECKED)
        return f"TensorRT {version} is newer than {newest}, the newest version checked"
    return f"halfwise was neither run with TensorRT {version} nor checked against its bindings"


Feeds = Mapping[str, NDArray[Any]]


def input_ports(engine: Description) -> list[Port]:
    """Return the inputs of an engine.

    Raises:
        CaseError: an input has a type that arrays here do not support.
    """
    return [Port(t.name, dtype_of(t.dtype), t.shape) for t in engine.tensors if t.is_input]


def packed(feeds: Feeds, engine: Description) -> tuple[list[dict[str, Any]], bytes]:
    """Return a request's entries for a sample in the engine's types, and the bytes of all arrays.

    Raises:
        CaseError: the engine's inputs differ, or their types cannot hold these values.
    """
    entries, parts = [], []
    for name, array in fit_inputs(feeds, input_ports(engine), "for the engine").items():
        entries.append({"name": name, "dtype": array.dtype.name, "shape": list(array.shape)})
        parts.append(array.tobytes())
    return entries, b"".join(parts)


def unpacked(
    entries: Sequence[Mapping[str, Any]], data: bytes | memoryview
) -> dict[str, NDArray[Any]]:
    """Return the arrays in an answer, read-only, by name.

    Raises:
        CaseError: arrays here do not support a type.
    """
    found, offset = {}, 0
    for entry in entries:
        dtype, shape = dtype_of(entry["dtype"]), tuple(entry["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(data, dtype, count, offset).reshape(shape)
        found[entry["name"]] = array
        offset += array.nbytes
    return found
