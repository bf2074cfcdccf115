"""Check and read what a worker and its engines answer, and pack arrays for an engine.

A worker runs on the user's own machine, but behind commands, shells and containers. Its answers
have the sizes and types of `FORMS`, and name only what was asked for; nothing else is doubted.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct, ValidationError, convert, defstruct
from numpy.typing import NDArray

from halfwise.records import (
    EngineTensor,
    NetworkLayer,
    Profile,
    ShapeRange,
    TensorName,
    WorkerInfo,
    replace,
)
from halfwise.tensorrt.ports import Port, dtype_of, fit_inputs
from halfwise.tensorrt.versions import (
    CHECKED_VERSIONS,
    RUN_VERSIONS,
    WRITTEN,
)
from halfwise.tensorrt.worker import ITEM_BYTES, PROTOCOL, product_of, titled
from halfwise.wording import excerpt, stopped

Header = Mapping[str, Any]
ENDS = ("result", "error", "died")
"""Kinds of frames that end a request."""
_BESIDE = ("log", "started")


class Unfit(Exception):
    """A worker sends something invalid; the text is a clause that follows its name."""


def _form(**fields: Any) -> type[Struct]:
    """Return a form: the type of each field; with a default, too, if it may be missing."""
    typed = [(name, *of) if isinstance(of, tuple) else (name, of) for name, of in fields.items()]
    return defstruct("Form", typed, kw_only=True, forbid_unknown_fields=True)


def _list(form: object) -> object:
    return list[form]  # type: ignore[valid-type]


_Size = Annotated[int, Meta(ge=0, lt=1 << 62)]
_Axes = list[Annotated[int, Meta(ge=-1, lt=1 << 48)]]
_Time = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
_Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
_Version = Annotated[str, Meta(pattern=f"^(?:{WRITTEN.pattern})$")]
_Dtype = Annotated[str, Meta(pattern=f"^(?:{'|'.join(ITEM_BYTES)})$")]
_Layer = tuple[str, str, list[str], bool]
_Gpu = _form(name=str, compute_capability=str, memory=_Size, free=_Size)
_File = _form(sha256=_Sha256, bytes=_Size, path=str)
_Limits = dict[Literal["min", "opt", "max"], _Axes]
_Port = _form(
    name=str,
    mode=Literal["input", "output"],
    dtype=str,
    shape=_Axes,
    location=Literal["host", "device"],
    shape_tensor=bool,
    linear=bool,
    profiles=list[_Limits],
)
_Output = _form(name=str, dtype=_Dtype, shape=list[Annotated[int, Meta(ge=0, lt=1 << 48)]])
_Error = _form(node=str, op=str, text=str, index=(int, -1))
_Refusal = _form(
    code=str,
    message=str,
    hint=(str, ""),
    log=(list[str], []),
    errors=(_list(_Error), []),
)
FORMS: Mapping[str, type[Struct]] = {
    "hello": _form(
        protocol=Annotated[int, Meta(ge=PROTOCOL, le=PROTOCOL)],
        python=str,
        executable=str,
        host=str,
        cache=str,
        driver=str | None,
        tf32_override=str | None,
        tensorrt=_Version | None,
        typing=list[Literal["weak", "strong"]],
        gpus=_list(_Gpu),
        import_error=(_Refusal, None),
        cuda_error=(_Refusal, None),
    ),
    **{name: _form() for name in ("put", "forget", "inspect", "started")},
    "have": _form(missing=list[_Sha256]),
    "get": _form(total=_Size),
    "build": _form(engine=_File, seconds=_Time, layers=list[_Layer], unconstrained=dict[str, str]),
    "describe": _form(
        io=_list(_Port),
        profiles=_Size,
        layers=_Size,
        device_bytes=_Size,
    ),
    "run": _form(outputs=_list(_Output)),
    "time": _form(
        iterations=Annotated[int, Meta(ge=1, lt=1 << 31)],
        median_ms=_Time,
        p99_ms=_Time,
        device_bytes=_Size,
    ),
    "log": _form(
        severity=Literal["verbose", "info", "warning", "error", "internal_error"], text=str
    ),
    "error": _Refusal,
    "died": _form(signal=str | None, status=Annotated[int, Meta(ge=0, lt=256)] | None),
}
"""The form of a result by its operation, and of other frames by their kind."""


def misfit(value: object, form: type[Struct]) -> str | None:
    """Return why a value does not have a form, and where, such as `$.gpus[0]`; None if it has."""
    try:
        convert(value, form)
    except ValidationError as error:
        return str(error)
    return None


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
        raise Unfit(f"sends a {kind} that does not fit: {what}")


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
        if any(len(limits) not in (0, 3) for limits in io["profiles"]):
            yield "a profile lacks a shape"
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


class Description(Struct, frozen=True):
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
            limits=tuple(msgspec.convert(p, ShapeRange) for p in io["profiles"] if p),
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
        tf32_override=answer["tf32_override"],
        trouble=_trouble(answer),
    )
    return replace(info, notes=tuple(_notes(info, answer)))


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
