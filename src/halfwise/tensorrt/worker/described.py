"""What a worker and its engines say about themselves, read from its answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from halfwise.errors import UsageError
from halfwise.records import (
    EngineTensor,
    NetworkLayer,
    Profile,
    ShapeRange,
    TensorName,
    WorkerInfo,
    version_of,
)
from halfwise.tensorrt.worker.worker import NEWEST_CHECKED

RUN_VERSIONS = ("8.6.0",)
"""Versions of TensorRT that engines were built and run with, on an H200 (bench/gpu)."""
FIRST_UNFUSED = (10, 12)
"""The first TensorRT with `mark_unfused_tensors_as_debug_tensors`."""
CHECKED_VERSIONS = ("8.6.1", "10.0.1", "10.16.1.11", "11.4.0.106")
"""Versions whose Python bindings the worker's calls are checked against (tests/bindings)."""
_LONGEST = 500
"""Characters of what keeps a worker from building."""


@dataclass(frozen=True)
class Description:
    """An engine as it describes itself.

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
    """Return what a `describe` answer tells."""
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
    """Return the layers before fusion that a `build` answer tells."""
    return tuple(
        NetworkLayer(name=name, type=kind, nodes=tuple(nodes), constrained=constrained)
        for name, kind, nodes, constrained in entries
    )


def profiles_of(engine: Description) -> tuple[Profile, ...]:
    """Return the optimization profiles of an engine; none where no input has a choice.

    Values of shape tensors are left out where they are not all told: of two elements, 8.6.0 told
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
    """Return what a `hello` answer tells of worker `name`, started by `command`."""
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
    """Raise UsageError where the worker's TensorRT lacks a tactic source."""
    if unknown := [name for name in names if name not in info.tactic_sources]:
        raise UsageError(
            f"TensorRT {info.tensorrt} has no tactic source {', '.join(unknown)}.",
            f"--tactic-sources takes {', '.join(info.tactic_sources)}.",
        )


def _trouble(answer: Mapping[str, Any]) -> str:
    found = [
        answer[key]["message"][:_LONGEST] for key in ("import_error", "cuda_error") if key in answer
    ]
    return " ".join(text if text.endswith(".") else f"{text}." for text in found)


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
        newest = ".".join(map(str, NEWEST_CHECKED))
        return f"TensorRT {version} is newer than {newest}, the newest that was checked"
    return f"halfwise was neither run with TensorRT {version} nor checked against its bindings"
