"""Check and read what a worker and its engines answer, and pack arrays for an engine.

A worker runs on the user's own machine, but behind commands, shells and containers. Its answers
have the sizes and types of `FORMS`, and name only what was asked for; nothing else is doubted.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.records import (
    EngineTensor,
    NetworkLayer,
    Profile,
    ShapeRange,
    TensorName,
    WorkerInfo,
)
from halfwise.tensorrt.ports import Port, dtype_of, fit_inputs
from halfwise.tensorrt.versions import (
    CHECKED_VERSIONS,
    RUN_VERSIONS,
    WRITTEN,
)
from halfwise.tensorrt.worker import ITEM_BYTES, PROTOCOL, product_of, titled
from halfwise.wording import excerpt, stopped

_SIZE = range(1 << 62)
_SHA256 = re.compile("[0-9a-f]{64}")
_AXES = [range(-1, 1 << 48)]
_FILE = {"sha256": _SHA256, "bytes": _SIZE, "path": str}
_LIMITS = {"min": _AXES, "opt": _AXES, "max": _AXES}
_ERROR = {"node": str, "op": str, "text": str, "index?": int}
_REFUSAL = {"code": str, "message": str, "hint?": str, "log?": [str], "errors?": [_ERROR]}

Header = Mapping[str, Any]
ENDS = ("result", "error", "died")
"""Kinds of frames that end a request."""
_BESIDE = ("log", "started")


class Unfit(Exception):
    """A worker sends something invalid; the text is a clause that follows its name."""


FORMS: Mapping[str, object] = {
    "hello": {
        "protocol": PROTOCOL,
        "python": str,
        "executable": str,
        "machine": str,
        "host": str,
        "cache": str,
        "driver": (str, None),
        "environment": {str: str},
        "tensorrt": (WRITTEN, None),
        "typing": [("weak", "strong")],
        "gpus": [
            {
                "index": int,
                "name": str,
                "compute_capability": str,
                "uuid": str,
                "memory": _SIZE,
                "free": _SIZE,
            }
        ],
        "import_error?": _REFUSAL,
        "cuda_error?": _REFUSAL,
    },
    **{name: {} for name in ("put", "forget", "inspect", "started")},
    "have": {"missing": [_SHA256]},
    "get": {"total": _SIZE},
    "build": {
        "engine": _FILE,
        "seconds": float,
        "layers": [[str, str, [str], bool]],
        "unconstrained": {str: str},
    },
    "describe": {
        "io": [
            {
                "name": str,
                "mode": ("input", "output"),
                "dtype": str,
                "shape": _AXES,
                "location": ("host", "device"),
                "shape_tensor": bool,
                "linear": bool,
                "profiles": [(_LIMITS, {})],
            }
        ],
        "profiles": _SIZE,
        "layers": _SIZE,
        "device_bytes": _SIZE,
    },
    "run": {
        "outputs": [{"name": str, "dtype": tuple(ITEM_BYTES), "shape": [range(1 << 48)]}],
    },
    "time": {
        "iterations": range(1, 1 << 31),
        "median_ms": float,
        "p99_ms": float,
        "device_bytes": _SIZE,
    },
    "log": {
        "severity": ("verbose", "info", "warning", "error", "internal_error"),
        "text": str,
    },
    "error": _REFUSAL,
    "died": {"signal": (str, None), "status": (range(256), None)},
}
"""The fields of a result by its operation, and of other frames by their kind; those with `?` may be
missing. A form is a type, a range of integers, a pattern, a value, a choice (tuple) of forms, a
list of one form or of one per item, fields by name, or `{str: form}` for any names. Floats are
finite and not negative."""


def misfit(value: object, form: object, where: str = "") -> str | None:
    """Return where a value does not have a form, such as "gpus.0.name"; None if it has."""
    if isinstance(form, dict) and form and isinstance(value, dict):
        if str in form:
            return _first((item, form[str], f"{where}.{name}") for name, item in value.items())
        fields = {name.rstrip("?"): part for name, part in form.items()}
        lacking = [n for n in form if n not in value and not n.endswith("?")]
        if wrong := lacking or [name for name in value if name not in fields]:
            return f"{where}.{wrong[0]}"
        return _first((item, fields[name], f"{where}.{name}") for name, item in value.items())
    if isinstance(form, list) and isinstance(value, list):
        forms = form * len(value) if len(form) == 1 else form
        if len(forms) != len(value):
            return where
        parts = enumerate(zip(value, forms, strict=True))
        return _first((item, part, f"{where}.{i}") for i, (item, part) in parts)
    return None if _has(value, form) else where


def _first(parts: Iterable[tuple[object, object, str]]) -> str | None:
    return next((at for part in parts if (at := misfit(*part)) is not None), None)


def _has(value: object, form: object) -> bool:
    if isinstance(form, tuple):
        return any(misfit(value, choice) is None for choice in form)
    if isinstance(form, range):
        return type(value) is int and value in form
    if isinstance(form, re.Pattern):
        return isinstance(value, str) and form.fullmatch(value) is not None
    if form is float:
        return isinstance(value, float | int) and type(value) is not bool and 0 <= value < inf
    return type(value) is form if isinstance(form, type) else value == form


def admit(request: Header, number: int, header: Header, size: int) -> None:
    """Check a frame that answers a request: its header, and the bytes that follow it.

    Log lines may belong to an earlier request, since TensorRT's threads outlive it.

    Args:
        request: The request.
        number: Its number.
        header: The frame's header.
        size: The size of its payload, in bytes.

    Raises:
        Unfit: the frame may not come now.
    """
    if not isinstance(header, dict):
        raise Unfit("sends a header that cannot be read")
    kind, identifier = header.get("kind"), header.get("id")
    if kind not in ENDS and kind not in _BESIDE:
        raise Unfit("sends a frame of an unknown kind")
    if kind in ENDS and (identifier != number or type(identifier) is not int):
        raise Unfit(f"sends a {kind} for a request that was not made")
    content = {key: value for key, value in header.items() if key not in ("id", "kind")}
    name = request["op"] if kind == "result" else kind
    what = misfit(content, FORMS[name])
    if what is None:
        what = next(_strange(name, request, content, size), None)
    if what is not None:
        raise Unfit(f"sends a {kind} that does not fit: {what.removeprefix('.')}")


def _strange(name: str, request: Header, answer: Header, size: int) -> Iterator[str]:
    """Yield what in an answer of the right form was not asked for, or contradicts itself."""
    if name == "hello" and answer["tensorrt"] and not answer["typing"]:
        yield "it names a TensorRT without typing"
    if name == "build" and not answer["engine"]["bytes"]:
        yield "the engine is empty"
    if name == "describe":
        yield from _contradictions(answer)
    if name in _NAMES:
        named, wanted = _NAMES[name](request, answer)
        if not set(named) <= set(wanted):
            yield "it names what was not asked for"
    due = _due(name, request, answer)
    if due is not None and size != due:
        yield f"{size} bytes follow instead of {due}"


_NAMES: Mapping[str, Callable[[Header, Header], tuple[Iterable[str], Iterable[str]]]] = {
    "have": lambda request, answer: (answer["missing"], request["hashes"]),
    "build": lambda request, answer: (answer["unconstrained"], request["config"]["keep"]),
}
"""Names in an answer, and those that its request has, by operation."""


def _contradictions(engine: Header) -> Iterator[str]:
    for io in engine["io"]:
        if len(io["profiles"]) != (engine["profiles"] if io["mode"] == "input" else 0):
            yield "an input or output has the wrong number of profiles"
        for sizes in (end for limits in io["profiles"] for end in limits.values()):
            fits = len(sizes) == len(io["shape"]) and min(sizes, default=0) >= 0
            if not fits and not io["shape_tensor"]:
                yield "a profile does not fit the shape of its input"


def _due(name: str, request: Header, answer: Header) -> int | None:
    """Return the size of a payload in bytes; None if it may have any.

    A chunk of a file has as many bytes as requested, up to the end of the file.
    """
    if name == "inspect":
        return None
    if name == "get":
        return int(max(0, min(request["length"], answer["total"] - request["offset"])))
    outputs = answer["outputs"] if name == "run" else ()
    return int(sum(prod(o["shape"]) * ITEM_BYTES[o["dtype"]] for o in outputs))


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
    chosen = [t for t in inputs if (_has_all_values(t) if t.shape_tensor else -1 in t.shape)]
    if not chosen:
        return ()
    return tuple(
        Profile(
            shapes={t.name: t.limits[index] for t in chosen if not t.shape_tensor},
            values={t.name: t.limits[index] for t in chosen if t.shape_tensor},
        )
        for index in range(engine.profiles)
    )


def _has_all_values(tensor: EngineTensor) -> bool:
    return all(len(limits.opt) == prod(tensor.shape) for limits in tensor.limits)


def worker_info(name: str, command: Sequence[str], answer: Mapping[str, Any]) -> WorkerInfo:
    """Return the facts in a `hello` answer of worker `name`, started by `command`."""
    gpu = answer["gpus"][0] if answer["gpus"] else {}
    environment = answer["environment"]
    info = WorkerInfo(
        name=name,
        command=tuple(command),
        tensorrt=answer["tensorrt"],
        product=product_of(answer["tensorrt"]),
        python=answer["python"],
        gpu=gpu.get("name"),
        compute_capability=gpu.get("compute_capability"),
        driver=answer["driver"],
        memory_bytes=gpu.get("memory"),
        free_bytes=gpu.get("free"),
        typing=tuple(answer["typing"]),
        tf32_override=environment.get("NVIDIA_TF32_OVERRIDE"),
        trouble=_trouble(answer),
    )
    return info.model_copy(update={"notes": tuple(_notes(info, answer))})


def _trouble(answer: Mapping[str, Any]) -> str:
    errors = [
        excerpt(answer[key]["message"]) for key in ("import_error", "cuda_error") if key in answer
    ]
    return " ".join(map(stopped, errors))


def _notes(info: WorkerInfo, answer: Mapping[str, Any]) -> list[str]:
    notes = []
    if info.tensorrt is not None:
        notes.append(_standing(info.tensorrt))
    if info.tf32_remark:
        notes.append(info.tf32_remark.rstrip("."))
    notes.append(f"keeps files in {answer['cache']} on {answer['host']}")
    return notes


def _standing(version: str) -> str:
    if version in RUN_VERSIONS:
        return f"halfwise was run with {titled(version)}"
    checked = "checked against its bindings" if version in CHECKED_VERSIONS else "unchecked"
    return f"halfwise was not run with {titled(version)}, {checked}"


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


def unpacked(entries: Sequence[Mapping[str, Any]], data: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays in an answer, read-only, by name.

    Raises:
        CaseError: arrays here do not support a type.
    """
    arrays, offset = {}, 0
    for entry in entries:
        dtype, shape = dtype_of(entry["dtype"]), tuple(entry["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(data, dtype, count, offset).reshape(shape)
        arrays[entry["name"]] = array
        offset += array.nbytes
    return arrays
