"""Check and read what a worker and its engines answer, and pack arrays for an engine.

A worker runs on the user's own machine, but behind commands, shells and containers. Its answers
have the sizes and types of `FORMS`, and name only what was asked for; nothing else is doubted.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
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
from halfwise.tensorrt.ports import Port, dtype_of, fit_inputs
from halfwise.tensorrt.transport import ENDS, Header, Unfit
from halfwise.tensorrt.versions import (
    CHECKED_VERSIONS,
    RUN_VERSIONS,
    WRITTEN,
)
from halfwise.tensorrt.worker import ITEM_BYTES, PROTOCOL
from halfwise.wording import excerpt, stopped

_SIZE = range(1 << 62)
_SHA256 = re.compile("[0-9a-f]{64}")
_AXES = [range(-1, 1 << 48)]
_FILE = {"sha256": _SHA256, "bytes": _SIZE, "path": str}
_LIMITS = {"min": _AXES, "opt": _AXES, "max": _AXES}
_ERROR = {"node": str, "op": str, "text": str, "index?": int}
_REFUSAL = {"code": str, "message": str, "hint?": str, "log?": [str], "errors?": [_ERROR]}

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
        "tactic_sources": [str],
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
    **{name: {} for name in ("put", "forget", "waiting", "started")},
    "have": {"missing": [_SHA256]},
    "get": {"total": _SIZE},
    "build": {
        "engine": _FILE,
        "timing_cache": _FILE,
        "timing_cache_fits": bool,
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
        "outputs": [
            {"name": str, "dtype": tuple(ITEM_BYTES), "shape": [range(1 << 48)], "debug": bool}
        ],
        "seen": [str],
    },
    "time": {
        "iterations": range(1, 1 << 31),
        "median_ms": float,
        "p99_ms": float,
        "transfer_median_ms": float,
        "transfer_p99_ms": float,
        "per_second": float,
        "device_bytes": _SIZE,
    },
    "inspect": {"milliseconds": {str: float}},
    "log": {
        "severity": ("verbose", "info", "warning", "error", "internal_error", "output"),
        "text": str,
    },
    "progress": {"phase": str, "done": _SIZE, "total": _SIZE},
    "error": _REFUSAL,
    "died": {
        "reason": ("signal", "exit", "timeout", "closed"),
        "signal": (str, None),
        "status": (range(256), None),
    },
}
"""The fields of a result by its operation, and of other frames by their kind; those with `?` may be
missing. A form is a type, a range of integers, a pattern, a value, a choice (tuple) of forms, a
list of one form or of one per item, fields by name, or `{str: form}` for any names. Floats are
finite and not negative."""
_BESIDE = ("log", "progress", "waiting", "started")


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


Fits = Callable[[Mapping[str, Any], int], str]
"""Takes a result of the right form, and the size of its payload in bytes. Returns a clause on what
does not fit; "" if everything fits."""


def _alone(_: object, size: int) -> str:
    return f"{size} bytes follow, but none are expected" if size else ""


@dataclass(frozen=True)
class Expected:
    """The answer that a request accepts.

    Attributes:
        op: Its operation.
        fits: Conditions beyond the form.
    """

    op: str
    fits: Fits = _alone

    def admit(self, number: int, header: Header, size: int) -> None:
        """Check a frame that answers request `number`: its header, and the bytes that follow it.

        Log lines may belong to an earlier request, since TensorRT's threads outlive it.

        Raises:
            Unfit: the frame may not come now.
        """
        kind, request = header.get("kind"), header.get("id")
        if kind not in ENDS and kind not in _BESIDE:
            raise Unfit("sends a frame of an unknown kind")
        if kind in ENDS and (request != number or type(request) is not int):
            raise Unfit(f"sends a {kind} for a request that was not made")
        content = {key: value for key, value in header.items() if key not in ("id", "kind")}
        what = misfit(content, FORMS[self.op if kind == "result" else kind])
        if what is None:
            what = (self.fits if kind == "result" else _alone)(content, size)
        if what:
            raise Unfit(f"sends a {kind} that does not fit: {what.removeprefix('.')}")


def missing_of(hashes: Collection[str]) -> Expected:
    """Return the answer expected when asking which of the files `hashes` are missing."""

    def fits(answer: Mapping[str, Any], size: int) -> str:
        strange = not set(answer["missing"]) <= set(hashes)
        return "names files that were not asked for" if strange else _alone(answer, size)

    return Expected("have", fits)


def chunk_of(total: int, offset: int, length: int) -> Expected:
    """Return the answer expected to a request for a chunk of a file of `total` reported bytes.

    It must be complete: as many bytes as requested, up to the end of the file.
    """

    def fits(answer: Mapping[str, Any], size: int) -> str:
        if answer["total"] != total:
            return f"the file has {answer['total']} bytes, but {total} were announced"
        due = max(0, min(length, total - offset))
        return "" if size == due else f"{size} bytes of the file follow instead of {due}"

    return Expected("get", fits)


def built_of(keep: Collection[str]) -> Expected:
    """Return the answer expected to a build that constrains `keep`."""

    def fits(answer: Mapping[str, Any], size: int) -> str:
        if not answer["engine"]["bytes"]:
            return "the engine is empty"
        strange = answer["unconstrained"].keys() - set(keep)
        return "it names a node that was not asked for" if strange else _alone(answer, size)

    return Expected("build", fits)


def _greets(answer: Mapping[str, Any], size: int) -> str:
    lacking = answer["tensorrt"] and not answer["typing"]
    return "it names a TensorRT without typing" if lacking else _alone(answer, size)


def _describes(answer: Mapping[str, Any], size: int) -> str:
    for io in answer["io"]:
        if len(io["profiles"]) != (answer["profiles"] if io["mode"] == "input" else 0):
            return "an input or output has the wrong number of profiles"
        for sizes in (end for limits in io["profiles"] for end in limits.values()):
            fits = len(sizes) == len(io["shape"]) and min(sizes, default=0) >= 0
            if not fits and not io["shape_tensor"]:
                return "a profile does not fit the shape of its input"
    return _alone(answer, size)


HELLO = Expected("hello", _greets)
DESCRIBED = Expected("describe", _describes)
INSPECTED = Expected("inspect", lambda _, __: "")


def ran_of(engine: "Description", watch: Sequence[str] | None) -> Expected:
    """Return the answer expected to a run of `engine`.

    Outputs have the engine's names, types and sizes, in its order; then come tensors marked for
    debugging: only those in `watch`, if it is not None. The payload has exactly the size of the
    arrays.
    """
    outputs = [t for t in engine.tensors if not t.is_input]

    def fits(answer: Mapping[str, Any], size: int) -> str:
        regular = [o for o in answer["outputs"] if not o["debug"]]
        if [o["name"] for o in regular] != [t.name for t in outputs]:
            return "the outputs are not the engine's"
        for output, tensor in zip(regular, outputs, strict=True):
            pairs = zip(output["shape"], tensor.shape, strict=False)
            same = len(output["shape"]) == len(tensor.shape) and output["dtype"] == tensor.dtype
            if not same or any(declared not in (-1, axis) for axis, declared in pairs):
                return f"output {tensor.name!r} does not have the engine's type and shape"
        names = {o["name"] for o in answer["outputs"] if o["debug"]}
        if watch is not None and not names <= set(watch):
            return "it contains tensors that were not asked for"
        due = sum(prod(o["shape"]) * ITEM_BYTES[o["dtype"]] for o in answer["outputs"])
        return "" if size == due else f"{size} bytes follow, but the arrays take {due}"

    return Expected("run", fits)


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
        return f"halfwise was run with TensorRT {version}"
    checked = "checked against its bindings" if version in CHECKED_VERSIONS else "unchecked"
    return f"halfwise was not run with TensorRT {version}, {checked}"


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
