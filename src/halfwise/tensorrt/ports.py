"""Optimization profiles: smallest, usual and largest shapes of the inputs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.case import Sample, Samples
from halfwise.errors import CaseError, UsageError
from halfwise.formats import BF16
from halfwise.graph.model import Network, tensor_name
from halfwise.graph.sizes import declared_axes, shape_inputs
from halfwise.records import Profile, ShapeRange, TensorName
from halfwise.tensorrt.trtexec import Shape, parse_shapes
from halfwise.tensorrt.versions import since
from halfwise.wording import dimensions, quoted


class Port(Struct, frozen=True):
    """An input or output of an engine or of a model.

    Attributes:
        name: Its name.
        dtype: Its type.
        shape: Sizes of its axes, -1 for a dynamic one; None if not even the rank is known.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None = None


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype for NumPy's or ml_dtypes' name of it, as workers use them.

    Raises:
        CaseError: arrays of this type are not supported, such as FP8 or INT4.
    """
    if name == "bfloat16":
        return BF16.dtype
    if name in ("bool", "float16", "float32", "float64", "int8", "int32", "int64", "uint8"):
        dtype: np.dtype[Any] = np.dtype(name)
        return dtype
    raise CaseError(
        f"Engine inputs and outputs of type {name} are not supported here.",
        "Build the engine with inputs and outputs in FP32, FP16, BF16, INT32, INT64 or BOOL.",
    )


def model_ports(values: Iterable[ir.Value]) -> tuple[Port, ...]:
    """Return the ports of graph inputs or outputs, which must be numeric tensors."""
    ports = []
    for value in values:
        assert value.name is not None
        assert value.dtype is not None
        shape = None
        if value.shape is not None:
            shape = tuple(a if isinstance(a, int) else -1 for a in declared_axes(value))
        ports.append(Port(value.name, value.dtype.numpy(), shape))
    return tuple(ports)


def check_names(names: Sequence[str], expected: Sequence[str], kind: str) -> None:
    """Check that an engine has the model's inputs, or outputs, by name and in any order.

    Args:
        names: Names in the engine.
        expected: Names in the model.
        kind: "inputs" or "outputs".

    Raises:
        CaseError: the two sets of names differ.
    """
    if set(names) != set(expected):
        raise CaseError(
            f"The engine's {kind} are {quoted(names)}, the model's {quoted(expected)}.",
            "Give the model that this engine was built from.",
        )


def fit_inputs(
    sample: Sample, ports: Sequence[Port], identifier: str
) -> dict[str, NDArray[np.generic]]:
    """Return a sample's arrays in the engine's types, C-contiguous, in the ports' order.

    Args:
        sample: Model inputs in the model's types.
        ports: Inputs of the engine.
        identifier: Identifier of the sample, for errors.

    Raises:
        CaseError: names or shapes differ, a value does not fit the engine's type, or the types
            cannot be converted.
    """
    check_names([port.name for port in ports], list(sample), "inputs")
    fitted = {}
    for port in ports:
        where = f"Sample {identifier}: input {port.name!r}"
        array = sample[port.name]
        _demand_shape(array.shape, port, where)
        fitted[port.name] = np.asarray(_converted(array, port.dtype, where), order="C")
    return fitted


def fit_outputs(
    outputs: Mapping[str, NDArray[Any]], ports: Sequence[Port], identifier: str
) -> dict[str, NDArray[np.generic]]:
    """Return an engine's outputs in the model's types, in the ports' order.

    NaN and infinities stay. So does a shape that differs from the model's in the same rank: the
    verdict reports it.

    Args:
        outputs: Arrays by name; those that the model lacks (debug tensors) are dropped.
        ports: Outputs of the model.
        identifier: Identifier of the sample, for errors.

    Raises:
        CaseError: an output is missing, its rank differs, a value does not fit the model's type, or
            the types cannot be converted.
    """
    if not outputs.keys() >= {port.name for port in ports}:
        check_names(list(outputs), [port.name for port in ports], "outputs")
    fitted = {}
    for port in ports:
        where = f"Sample {identifier}: the engine's output {port.name!r}"
        array = outputs[port.name]
        if port.shape is not None and array.ndim != len(port.shape):
            raise CaseError(
                f"{where} has rank {array.ndim}, the model's {len(port.shape)}.",
                "Give the model that this engine was built from.",
            )
        fitted[port.name] = _converted(array, port.dtype, where)
    return fitted


def _demand_shape(shape: tuple[int, ...], port: Port, where: str) -> None:
    if port.shape is None:
        return
    pairs = zip(shape, port.shape, strict=False)
    if len(shape) != len(port.shape) or any(b not in (-1, a) for a, b in pairs):
        raise CaseError(
            f"{where} is {dimensions(shape)}, the engine takes {dimensions(port.shape)}.",
            "Build the engine with a profile that covers this shape.",
        )


def _converted(array: NDArray[Any], dtype: np.dtype[Any], where: str) -> NDArray[np.generic]:
    """Return `array` as `dtype`, without a copy if nothing changes."""
    if array.dtype == dtype:
        return array
    kinds = {_kind(array.dtype), _kind(dtype)}
    if kinds == {"float"}:
        # Values that overflow reach the engine as infinity.
        with np.errstate(over="ignore", under="ignore"):
            return array.astype(dtype)
    if kinds <= {"integer", "bool"}:
        with np.errstate(all="ignore"):
            fitted = array.astype(dtype)
        # Modulo 2^64, a negative number survives the way to uint64 and back.
        changed = (fitted.astype(array.dtype) != array) | ((fitted < 0) != (array < 0))
        lost = np.flatnonzero(changed)
        if not lost.size:
            return fitted
        raise CaseError(
            f"{where} holds {np.ravel(array)[lost[0]]}, which {dtype.name} cannot hold.",
            f"Check the data, or build with TensorRT {since('int64')} or later, which has 64-bit "
            "integers.",
        )
    raise CaseError(
        f"{where} has type {array.dtype.name}; expected {dtype.name}.",
        "Build the engine with the types of the model's inputs and outputs.",
    )


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype == BF16.dtype:
        return "float"
    return {"f": "float", "i": "integer", "u": "integer", "b": "bool"}.get(dtype.kind, dtype.name)


_OPTIONS = ("minShapes", "optShapes", "maxShapes")

Seen = dict[TensorName, Shape]


def profiles_from_data(network: Network, samples: Samples) -> tuple[Profile, ...]:
    """Return the profile that covers all samples; none if shapes cannot vary.

    `min` and `max` are taken axis by axis. `opt` is the most frequent combination of all inputs'
    shapes, the largest if several are equally frequent: one that really occurs, since kernels
    are chosen for it. Shape tensors have the values that go with it.

    Args:
        network: The model.
        samples: At least one; each is loaded once.

    Raises:
        CaseError: a shape tensor's number of elements differs between samples.
    """
    dynamic, shape_tensors = dynamic_inputs(network), shape_inputs(network)
    if not dynamic and not shape_tensors:
        return ()
    seen = [
        (_shapes(sample, dynamic), _values(sample, sorted(shape_tensors))) for sample in samples
    ]
    for name in shape_tensors:
        if len(lengths := {len(values[name]) for _, values in seen}) > 1:
            raise CaseError(
                f"Input {name!r} decides shapes and has {min(lengths)} to {max(lengths)} "
                "elements; TensorRT needs one length.",
                "Give samples in which it has the same number of elements.",
            )
    counts = Counter((tuple(shapes.items()), tuple(values.items())) for shapes, values in seen)
    shapes, values = max(
        counts, key=lambda one: (counts[one], sum(int(np.prod(shape)) for _, shape in one[0]))
    )
    return (
        Profile(
            shapes=_ranges([s for s, _ in seen], dict(shapes)),
            values=_ranges([v for _, v in seen], dict(values)),
        ),
    )


def profiles_from_options(
    network: Network,
    samples: Samples | None,
    minimum: Sequence[str],
    optimum: Sequence[str],
    maximum: Sequence[str],
) -> tuple[Profile, ...]:
    """Return one profile per position in the `minShapes`, `optShapes` and `maxShapes` lists.

    A missing list is filled as trtexec does from 8.6 on (`processShapes` in
    sampleOptions.cpp; up to 8.4 it takes only `optShapes` alone or all three): opt is max,
    else min; min and max are opt. For shape tensors, sizes are values; those that the user does
    not give come from the samples. Inputs without a dynamic axis may be named, and are left out.

    Args:
        network: The model.
        samples: At least one; None if there are none, and then every shape tensor must be named.
        minimum: Values of `minShapes`, one per profile.
        optimum: Values of `optShapes`.
        maximum: Values of `maxShapes`.

    Raises:
        UsageError: the lists differ in length or in their inputs, or an item cannot be read.
        CaseError: an item does not fit the model, an input with a dynamic axis has no shape, or
            min ≤ opt ≤ max does not hold.
    """
    options = dict(zip(_OPTIONS, (minimum, optimum, maximum), strict=True))
    counts = {option: len(texts) for option, texts in options.items() if texts}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{option} {count} times" for option, count in counts.items())
        raise UsageError(
            f"The profiles are incomplete: {listed}.",
            "Give each of these options once per profile, in the same order.",
        )
    parsed = {option: [parse_shapes(t, option) for t in options[option]] for option in counts}
    if not parsed:
        return ()
    groups = [dict(zip(parsed, parts, strict=True)) for parts in zip(*parsed.values(), strict=True)]
    if samples is None:
        return tuple(_profile(network, parts, _named(network, parts)) for parts in groups)
    (observed,) = profiles_from_data(network, samples) or (Profile(),)
    return tuple(_profile(network, parts, observed) for parts in groups)


def profile_of(profiles: Sequence[Profile], sample: Sample) -> int | None:
    """Return the index of the first profile that covers `sample`; None if none does."""
    return next((i for i, p in enumerate(profiles) if not _outside(p, sample)), None)


def check_covered(profiles: Sequence[Profile], samples: Samples) -> None:
    """Check that `profiles` cover every sample; without profiles all shapes are fixed.

    Raises:
        CaseError: a sample is outside every profile.
    """
    if not profiles:
        return
    for identifier, sample in zip(samples.ids, samples, strict=True):
        if profile_of(profiles, sample) is None:
            where = "every profile" if len(profiles) > 1 else "the profile"
            raise CaseError(
                f"Sample {identifier} is outside {where}: {_outside(profiles[0], sample)}.",
                "Widen --engine minShapes and maxShapes, or leave them out: the profile then "
                "covers all samples.",
            )


def dynamic_inputs(network: Network) -> list[TensorName]:
    """Return the names of the inputs with an axis whose size the model leaves open."""
    return [
        tensor_name(v)
        for v in network.graph.inputs
        if not all(isinstance(axis, int) for axis in declared_axes(v))
    ]


def _shapes(sample: Sample, names: Iterable[TensorName]) -> Seen:
    return {name: tuple(sample[name].shape) for name in names}


def _values(sample: Sample, names: Iterable[TensorName]) -> Seen:
    return {name: tuple(int(v) for v in np.ravel(sample[name])) for name in names}


def _ranges(seen: Sequence[Seen], usual: Seen) -> dict[TensorName, ShapeRange]:
    ranges = {}
    for name, opt in usual.items():
        axes = list(zip(*(one[name] for one in seen), strict=True))
        ranges[name] = ShapeRange(min=tuple(map(min, axes)), opt=opt, max=tuple(map(max, axes)))
    return ranges


def _profile(network: Network, parts: Mapping[str, Seen], observed: Profile) -> Profile:
    """Combine the options' values, `parts`, into a profile."""
    inputs = {tensor_name(v): v for v in network.graph.inputs}
    shape_tensors, dynamic = shape_inputs(network), dynamic_inputs(network)
    shapes: dict[TensorName, ShapeRange] = {}
    values = dict(observed.values)
    for name in dict.fromkeys(name for part in parts.values() for name in part):
        if name not in inputs:
            raise CaseError(
                f"The model has no input {name!r}.", f"Its inputs are: {', '.join(inputs)}."
            )
        for option, part in parts.items():
            if name not in part:
                raise UsageError(
                    f"{option} gives no shape for input {name!r}, which another option names.",
                    f"Name the same inputs in {', '.join(parts)}.",
                )
            if name in shape_tensors:
                _check_values(name, part[name], len(values[name].opt), option)
            else:
                _check_shape(inputs[name], part[name], option)
        filled = _filled(name, {option: part[name] for option, part in parts.items()})
        if name not in shape_tensors:
            shapes[name] = filled
            continue
        values[name] = filled
        if name in dynamic:
            shapes[name] = observed.shapes[name]
    if missing := [name for name in dynamic if name not in shapes]:
        raise CaseError(
            f"Input {missing[0]!r} has a dynamic axis and no shape: "
            f"{_text(declared_axes(inputs[missing[0]]))}.",
            f"Name every input with a dynamic axis in {', '.join(parts)}.",
        )
    return Profile(shapes={n: shapes[n] for n in dynamic}, values=values)


def _named(network: Network, parts: Mapping[str, Seen]) -> Profile:
    """Return a stand-in for observed shape tensors without samples: any values named.

    Raises:
        CaseError: a shape tensor is not named.
    """
    named = {name: shape for part in parts.values() for name, shape in part.items()}
    shape_tensors = sorted(shape_inputs(network))
    if missing := [name for name in shape_tensors if name not in named]:
        raise CaseError(
            f"Input {missing[0]!r} decides shapes, but its values are not given.",
            f"Name it in {', '.join(parts)}, with values in place of sizes.",
        )
    usual = {name: named[name] for name in shape_tensors}
    lengths: Seen = {name: (len(values),) for name, values in usual.items()}
    return Profile(shapes=_ranges([lengths], lengths), values=_ranges([usual], usual))


def _filled(name: TensorName, shapes: Mapping[str, Shape]) -> ShapeRange:
    low, opt, high = (shapes.get(option) for option in _OPTIONS)
    for smaller, larger in combinations(shapes, 2):
        for axis, (a, b) in enumerate(zip(shapes[smaller], shapes[larger], strict=True)):
            if a > b:
                raise CaseError(
                    f"For input {name!r}, {smaller} is larger than {larger} at axis {axis}: "
                    f"{a} > {b}.",
                    "Give min ≤ opt ≤ max on every axis.",
                )
    usual = next(shape for shape in (opt, high, low) if shape is not None)
    return ShapeRange(
        min=usual if low is None else low, opt=usual, max=usual if high is None else high
    )


def _check_values(name: TensorName, values: Shape, expected: int, option: str) -> None:
    if len(values) != expected:
        raise CaseError(
            f"{option} gives input {name!r} {len(values)} values, but it has {expected}.",
            "The values of this input decide shapes: give them, not its shape.",
        )


def _check_shape(value: ir.Value, shape: Shape, option: str) -> None:
    axes = declared_axes(value)
    if len(shape) != len(axes):
        raise CaseError(
            f"{option} gives input {value.name!r} rank {len(shape)} ({_text(shape)}), the model "
            f"rank {len(axes)} ({_text(axes)}).",
            "Give one size per axis, including the batch.",
        )
    for axis, (size, declared) in enumerate(zip(shape, axes, strict=True)):
        if size < 0:
            raise CaseError(
                f"{option} gives input {value.name!r} the negative size {size} at axis {axis}.",
                "A profile needs numbers: give the smallest, usual and largest size of each axis.",
            )
        if isinstance(declared, int) and size != declared:
            raise CaseError(
                f"{option} gives input {value.name!r} {size} at axis {axis}, but the model fixes "
                f"it to {declared} ({_text(axes)}).",
                "Export the model with this axis dynamic (`dynamic_axes` or `dynamic_shapes` of "
                "torch.onnx.export), or give the model's own size.",
            )


def _outside(profile: Profile, sample: Sample) -> str:
    """Return a clause on what in `sample` the profile does not cover; empty if it covers all."""
    seen = (
        (profile.shapes, _shapes(sample, profile.shapes), "is"),
        (profile.values, _values(sample, profile.values), "holds"),
    )
    for ranges, sizes, verb in seen:
        for name, allowed in ranges.items():
            axes = zip(allowed.min, sizes[name], allowed.max, strict=False)
            if len(sizes[name]) != len(allowed.min) or not all(a <= b <= c for a, b, c in axes):
                limits = f"{_text(allowed.min)} to {_text(allowed.max)}"
                return f"{name} {verb} {_text(sizes[name])}, allowed {limits}"
    return ""


def _text(shape: Sequence[int | str | None]) -> str:
    return "×".join("?" if axis is None else str(axis) for axis in shape) or "scalar"
