"""Models with one fault each: false sizes, invalid names, endless recursion."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.attacks.models import drawn

X, FLOAT = (1, 8), TensorProto.FLOAT
Make = Callable[[Path], None]
"""Writes something called `model.onnx` into a folder."""
_HUGE = 1 << 40
SIZES: Mapping[str, Sequence[int]] = {
    "2^40": [_HUGE],
    "2^31 by 2^31": [1 << 31, 1 << 31],
    "2^62 by 4": [1 << 62, 4],
    "2^63 - 1": [(1 << 63) - 1],
    "negative": [-1, 8],
    "rank 2000": [1] * 2000,
    "70 axes of 2": [2] * 70,
}
ENTRIES: Mapping[str, Mapping[str, str]] = {
    "a NUL in its name": {"location": "a\0b"},
    "a long name": {"location": "w" * 5000},
    "a deep name": {"location": "w/" * 3000},
    "no name": {"location": ""},
    "its folder": {"location": "."},
    "a device": {"location": "/dev/zero"},
    "a file elsewhere": {"location": "../../../../etc/passwd"},
    "a pipe": {"location": "pipe"},
    "a link to a pipe": {"location": "link"},
    "a circle of links": {"location": "circle"},
    "a folder": {"location": "sub"},
    "itself": {"location": "model.onnx"},
    "colours in its name": {"location": "w\n\x1b[31m"},
    "an offset of 5000 digits": {"location": "w.bin", "offset": "9" * 5000},
    "a length of 5000 digits": {"location": "w.bin", "length": "9" * 5000},
    "a negative offset": {"location": "w.bin", "offset": "-4"},
    "an offset of 2^63": {"location": "w.bin", "offset": str(1 << 63)},
    "a length of 2^40": {"location": "w.bin", "length": str(_HUGE)},
    "an offset in other digits": {"location": "w.bin", "offset": "٣"},
    "an offset that is no number": {"location": "w.bin", "offset": "²"},
    "an offset with blanks": {"location": "w.bin", "offset": " 4 "},
}
_NAMED = ("node", "aaaa", "xxxx", "yyyy", "gggg", "dddd", "Relu", "alpha", "docs", "kkkk")
_BYTES = {
    "bytes that are not UTF-8": b"\xff\xfe\xfd\x80\x81",
    "half a surrogate pair": b"\xed\xa0\x80a\x81",
    "control characters": b"\0\x1b\r\na",
}


def _model(
    nodes: Sequence[onnx.NodeProto],
    weights: Sequence[TensorProto] = (),
    *,
    functions: Sequence[onnx.FunctionProto] = (),
    shape: Sequence[int] = X,
) -> onnx.ModelProto:
    ends = (
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info("y", FLOAT, None)],
    )
    graph = helper.make_graph(nodes, "g", *ends, list(weights))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)


def _product(weight: str = "W", out: str = "a") -> onnx.NodeProto:
    return helper.make_node("MatMul", ["x", weight], [out], name="node")


def _relu(source: str = "a", out: str = "y") -> onnx.NodeProto:
    return helper.make_node("Relu", [source], [out], name="relu")


def _weight(name: str = "W") -> TensorProto:
    return numpy_helper.from_array(drawn(8, 8), name)


def _constant(name: str, value: object, dtype: str = "int64") -> TensorProto:
    return numpy_helper.from_array(np.asarray(value, dtype), name)


def _claimed(dims: Sequence[int], content: bytes = b"", dtype: int = FLOAT) -> TensorProto:
    tensor = TensorProto(name="W", data_type=dtype, dims=dims)
    if content:
        tensor.raw_data = content
    return tensor


def saved(make: Callable[[], onnx.ModelProto]) -> Make:
    """Return a function that writes the model from `make`."""

    def write(folder: Path) -> None:
        (folder / "model.onnx").write_bytes(make().SerializeToString())

    return write


def _sized(dims: Sequence[int]) -> Mapping[str, Callable[[], onnx.ModelProto]]:
    plain = [_product(), _relu()]

    def sparse() -> onnx.ModelProto:
        model = _model(plain)
        value, index = _constant("W", [1], "float32"), _constant("i", [0])
        model.graph.sparse_initializer.add(values=value, indices=index, dims=dims)
        return model

    def described() -> onnx.ModelProto:
        model = _model(plain, [_weight()])
        model.graph.value_info.append(helper.make_tensor_value_info("a", FLOAT, dims))
        return model

    held = helper.make_node("Constant", [], ["W"], value=_claimed(dims, b"\0" * 4))
    return {
        "an empty weight": lambda: _model(plain, [_claimed(dims)]),
        "a weight": lambda: _model(plain, [_claimed(dims, b"\0" * 256)]),
        "a constant": lambda: _model([held, *plain]),
        "an input": lambda: _model(plain, [_weight()], shape=dims),
        "a value": described,
        "a sparse weight": sparse,
    }


def _computed(op: str, inputs: Sequence[TensorProto]) -> Callable[[], onnx.ModelProto]:
    nodes = [
        helper.make_node(op, [t.name for t in inputs], ["b"], name="big"),
        helper.make_node("Cast", ["b"], ["c"], to=FLOAT),
        helper.make_node("ReduceMax", ["c"], ["r"], keepdims=0),
        _product(),
        helper.make_node("Add", ["a", "r"], ["y"]),
    ]
    return lambda: _model(nodes, [_weight(), *inputs])


def _grown(op: str, *inputs: TensorProto, **attributes: object) -> Callable[[], onnx.ModelProto]:
    big = helper.make_node(op, ["a", *(t.name for t in inputs)], ["b"], name="big", **attributes)
    nodes = [_product(), big, helper.make_node("ReduceMax", ["b"], ["y"], keepdims=0)]
    return lambda: _model(nodes, [_weight(), *inputs])


COMPUTED: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "ConstantOfShape of 2^40": _computed("ConstantOfShape", [_constant("s", [_HUGE])]),
    "ConstantOfShape of 2^62 by 4": _computed("ConstantOfShape", [_constant("s", [1 << 62, 4])]),
    "ConstantOfShape of a negative size": _computed("ConstantOfShape", [_constant("s", [-5])]),
    "ConstantOfShape of rank 2000": _computed("ConstantOfShape", [_constant("s", [1] * 2000)]),
    "Range of 2^40": _computed(
        "Range", [_constant(n, v) for n, v in zip("sld", (0, _HUGE, 1), strict=True)]
    ),
    "Range that does not move": _computed(
        "Range", [_constant(n, v) for n, v in zip("sld", (0, _HUGE, 0), strict=True)]
    ),
    "OneHot of 2^40": _computed(
        "OneHot", [_constant("i", [1]), _constant("d", _HUGE), _constant("v", [0, 1])]
    ),
    "Expand to 2^40": _grown("Expand", _constant("s", [_HUGE, 1, 8])),
    "Expand to rank 2000": _grown("Expand", _constant("s", [1] * 2000)),
    "Tile to 2^40": _grown("Tile", _constant("s", [_HUGE, 1])),
    "Pad by 2^40": _grown("Pad", _constant("s", [0, 0, _HUGE, 0])),
    "Reshape to rank 2000": _grown("Reshape", _constant("s", [1] * 1999 + [8])),
    "Unsqueeze to rank 2000": _grown("Unsqueeze", _constant("s", np.arange(2000))),
    "Transpose by 2^40": _grown("Transpose", perm=[_HUGE, 0]),
    "Transpose of 2000 axes": _grown("Transpose", perm=list(range(2000))),
    "Softmax of axis 2^62": _grown("Softmax", axis=1 << 62),
    "Cast to a type that is none": _grown("Cast", to=9999),
}


def _function(name: str, *nodes: onnx.NodeProto) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    return helper.make_function("f", name, ["p"], ["q"], nodes, opsets)


def _call(name: str, source: str = "p", out: str = "q") -> onnx.NodeProto:
    return helper.make_node(name, [source], [out], domain="f")


def _calling(*functions: onnx.FunctionProto) -> Callable[[], onnx.ModelProto]:
    nodes = [_product(), _call("F0", "a", "y")]
    return lambda: _model(nodes, [_weight()], functions=functions)


_LAST = helper.make_node("Relu", ["p"], ["q"])
FUNCTIONS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "a function that calls itself": _calling(_function("F0", _call("F0"))),
    "functions that call each other": _calling(
        _function("F0", _call("F1")), _function("F1", _call("F0"))
    ),
    "functions of 2^40 nodes": _calling(
        *(
            _function(f"F{i}", _call(f"F{i + 1}", out="r"), _call(f"F{i + 1}", "r"))
            for i in range(40)
        ),
        _function("F40", _LAST),
    ),
    "functions 1000 deep": _calling(
        *(_function(f"F{i}", _call(f"F{i + 1}")) for i in range(1000)), _function("F1000", _LAST)
    ),
    "two functions of one name": _calling(_function("F0", _LAST), _function("F0", _LAST)),
}


def loop(trips: int | None) -> Callable[[], onnx.ModelProto]:
    """Return a function that makes a model with a Loop of `trips` trips; None: it never ends."""
    state = [("i", TensorProto.INT64, []), ("c", TensorProto.BOOL, []), ("v", FLOAT, X)]
    ends = [("d", TensorProto.BOOL, []), ("w", FLOAT, X)]
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Tanh", ["v"], ["w"])],
        "body",
        [helper.make_tensor_value_info(*value) for value in state],
        [helper.make_tensor_value_info(*value) for value in ends],
    )
    given = [] if trips is None else [_constant("trips", trips)]
    name = given[0].name if given else ""
    node = helper.make_node("Loop", [name, "go", "a"], ["y"], body=body, name="loop")
    weights = [_weight(), _constant("go", True, "bool"), *given]
    return lambda: _model([_product(), node], weights)


def _outside(entries: Mapping[str, str]) -> Make:
    def write(folder: Path) -> None:
        (folder / "w.bin").write_bytes(bytes(256))
        (folder / "sub").mkdir()
        os.mkfifo(folder / "pipe")
        (folder / "link").symlink_to("pipe")
        (folder / "circle").symlink_to("circle")
        weight = _claimed([8, 8])
        weight.data_location = TensorProto.EXTERNAL
        for key, value in entries.items():
            weight.external_data.add(key=key, value=value)
        saved(lambda: _model([_product(), _relu()], [weight]))(folder)

    return write


def _renamed(name: str, content: bytes) -> Make:
    def write(folder: Path) -> None:
        leak = helper.make_node("LeakyRelu", ["b"], ["y"], alpha=0.1)
        model = _model([_product(out="aaaa"), _relu("aaaa", "b"), leak], [_weight()])
        model.graph.input[0].name = model.graph.node[0].input[0] = "xxxx"
        model.graph.output[0].name = leak_out = "yyyy"
        model.graph.node[2].output[0] = leak_out
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "dddd"
        model.graph.name, model.doc_string = "gggg", "docs"
        model.metadata_props.add(key="kkkk", value="v")
        old = name.encode()
        raw = model.SerializeToString()
        assert old in raw, name
        (folder / "model.onnx").write_bytes(raw.replace(old, content[: len(old)]))

    return write


def _sparse(nbytes: int) -> Make:
    def write(folder: Path) -> None:
        saved(lambda: _model([_product(), _relu()], [_weight()]))(folder)
        os.truncate(folder / "model.onnx", nbytes)

    return write


def _versioned(ir: int, opset: int) -> Callable[[], onnx.ModelProto]:
    def make() -> onnx.ModelProto:
        model = _model([_product(), _relu()], [_weight()])
        model.ir_version, model.opset_import[0].version = ir, opset
        return model

    return make


_VERSIONS = {"2^62": 1 << 62, "negative": -3, "0": 0}
_PLAIN: Mapping[str, Callable[[], onnx.ModelProto]] = {
    **{f"{n} of {s}": make for s, dims in SIZES.items() for n, make in _sized(dims).items()},
    **COMPUTED,
    **FUNCTIONS,
    **{f"opset {n}": _versioned(8, version) for n, version in _VERSIONS.items()},
    **{f"IR version {n}": _versioned(version, 17) for n, version in _VERSIONS.items()},
    "a weight of a type that is none": lambda: _model(
        [_product(), _relu()], [_claimed([8, 8], bytes(256), 9999)]
    ),
    "a weight that is too short": lambda: _model(
        [_product(), _relu()], [_claimed([8, 8], bytes(100))]
    ),
    "a value of a million letters": lambda: _model(
        [_product(), helper.make_node("Add", ["a", "v" * 10**6], ["y"])], [_weight()]
    ),
    "an operator of a million letters": lambda: _model(
        [helper.make_node("O" * 10**6, ["x"], ["y"])]
    ),
    "nodes in a circle": lambda: _model(
        [helper.make_node("Add", ["x", "b"], ["a"]), _relu("a", "b"), _relu("b")]
    ),
}
MODELS: Mapping[str, Make] = {
    **{name: saved(make) for name, make in _PLAIN.items()},
    **{f"external data: {name}": _outside(entries) for name, entries in ENTRIES.items()},
    **{
        f"{told} in {name}": _renamed(name, content)
        for told, content in _BYTES.items()
        for name in _NAMED
    },
    "a pipe": lambda folder: os.mkfifo(folder / "model.onnx"),
    "a folder": lambda folder: (folder / "model.onnx").mkdir(),
    "a circle of links": lambda folder: (folder / "model.onnx").symlink_to("model.onnx"),
    "a link to a device": lambda folder: (folder / "model.onnx").symlink_to("/dev/zero"),
    "64 GB of nothing": _sparse(1 << 36),
    "2 GB of nothing": _sparse((1 << 31) + (1 << 20)),
}
"""The fault of each model, and the function that writes it."""
