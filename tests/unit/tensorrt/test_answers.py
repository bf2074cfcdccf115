"""Every form takes what the worker sends, and nothing of another type or that was not asked for."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import array_shapes, arrays

from halfwise.errors import CaseError
from halfwise.records import EngineTensor, ShapeRange, TensorName, replace
from halfwise.tensorrt.answers import (
    FORMS,
    Description,
    Unfit,
    admit,
    described,
    misfit,
    packed,
    profiles_of,
    unpacked,
    worker_info,
)
from halfwise.tensorrt.worker import PROTOCOL

A, B = "a" * 64, "b" * 64


def admitted(request, result, size=0):
    admit(request, 3, {"id": 3, "kind": "result", **result}, size)


def have(*hashes):
    return {"op": "have", "hashes": hashes}


def get(offset, length):
    return {"op": "get", "offset": offset, "length": length}


BUILD = {"op": "build", "config": {"keep": ["n"]}}
RUN, PUT, DESCRIBE = {"op": "run"}, {"op": "put"}, {"op": "describe"}


def file(sha256, size=1, path=None):
    return {"sha256": sha256, "bytes": size, "path": path or f"/cache/files/{sha256}"}


def built(**changed):
    return {
        "engine": file(A),
        "seconds": 1,
        "layers": [["l", "ELEMENTWISE", ["n"], True]],
        "unconstrained": {"n": "why"},
        **changed,
    }


def ran(*outputs, **changed):
    base = {"name": "y", "dtype": "float32", "shape": [2, 3]}
    return {"outputs": [base | o for o in outputs], **changed}


@pytest.mark.parametrize(
    ("request_", "result", "size"),
    [
        (have(A, B), {"missing": [B]}, 0),
        (get(8, 8), {"total": 10}, 2),
        (get(0, 8), {"total": 0}, 0),
        (BUILD, built(), 0),
        (RUN, ran({}), 24),
        (RUN, ran({}, {"name": "h", "shape": [5]}), 44),
        (PUT, {}, 0),
    ],
)
def test_what_was_asked_for_is_admitted(request_, result, size):
    admitted(request_, result, size)


@pytest.mark.parametrize(
    ("request_", "result", "size", "told"),
    [
        (have(A), {"missing": [B]}, 0, "what was not asked for"),
        (have(A), {"missing": ["../../etc/passwd"]}, 0, r"missing\[0\]"),
        (get(8, 8), {"total": 11}, 2, "2 bytes follow instead of 3"),
        (get(0, 8), {"total": 10}, 1, "1 bytes follow instead of 8"),
        (get(8, 8), {"total": 10}, 8, "instead of 2"),
        (BUILD, built(engine=file(A, 0)), 0, "the engine is empty"),
        (BUILD, built(unconstrained={"m": ""}), 0, "what was not asked for"),
        (BUILD, built(), 5, "5 bytes follow"),
        (RUN, ran({}), 23, "23 bytes follow instead of 24"),
        (PUT, {}, 1, "1 bytes follow"),
    ],
)
def test_what_was_not_asked_for_is_refused(request_, result, size, told):
    with pytest.raises(Unfit, match=told):
        admitted(request_, result, size)


def port(**changed):
    limits = {"min": [1, 4], "opt": [1, 4], "max": [2, 4]}
    return {
        "name": "x",
        "mode": "input",
        "dtype": "float32",
        "shape": [-1, 4],
        "location": "device",
        "shape_tensor": False,
        "linear": True,
        "profiles": [limits],
        **changed,
    }


@pytest.mark.parametrize(
    ("io", "told"),
    [
        ([port()], None),
        ([port(profiles=[{}])], None),
        ([port(mode="output")], "wrong number of profiles"),
        ([port(profiles=[])], "wrong number of profiles"),
        ([port(profiles=[{}, {}])], "wrong number of profiles"),
        ([port(profiles=[{"min": [-1, 4], "opt": [1, 4], "max": [1, 4]}])], "does not fit"),
        ([port(shape=[4])], "does not fit the shape"),
        ([port(profiles=[{"min": [1, 4], "max": [2, 4]}])], "lacks a shape"),
        ([port(profiles=[{"min": [1, 4], "opt": [1, 4], "max": [1]}])], "does not fit"),
    ],
)
def test_a_description_agrees_with_itself(io, told):
    result = {"io": io, "profiles": 1, "layers": 3, "device_bytes": 7}
    if told is None:
        admitted(DESCRIBE, result)
    else:
        with pytest.raises(Unfit, match=told):
            admitted(DESCRIBE, result)


LINE = {"kind": "log", "severity": "info", "text": "t"}


@pytest.mark.parametrize(
    "header",
    [
        {"kind": "started"},
        LINE,
        {**LINE, "id": 1},  # TensorRT's threads go on after a request
        {**LINE, "id": None},
    ],
)
def test_what_may_come(header):
    admit(PUT, 3, {"id": 3, **header}, 0)


@pytest.mark.parametrize(
    "header",
    [
        {"kind": "result", "id": 2},
        {"kind": "result", "id": 3.0},
        {"kind": "result", "id": None},
        {"kind": "heartbeat"},
        {"kind": "died", "signal": 9, "status": None},
    ],
)
def test_what_may_not(header):
    with pytest.raises(Unfit):
        admit(PUT, 3, {"id": 3, **header}, 0)


RECORDED = json.loads((Path(__file__).parents[3] / "bench/attacks/answers.json").read_text())


def frames():
    """Return form and content of every frame that the stand-in has sent."""
    for answers in RECORDED.values():
        for op, frame in ((o, f) for o, many in answers.items() for fs in many for f in fs):
            kind = frame["header"]["kind"]
            content = {k: v for k, v in frame["header"].items() if k not in ("id", "kind")}
            yield op if kind == "result" else kind, content


def test_what_the_worker_sends_fits():
    assert len({name for name, _ in frames() if misfit(_, FORMS[name]) is None}) >= 11
    assert [(name, at) for name, c in frames() if (at := misfit(c, FORMS[name])) is not None] == []


TIMED: dict[str, Any] = {"iterations": 3, "median_ms": 1, "p99_ms": 0.5, "device_bytes": 7}


@pytest.mark.parametrize(
    ("name", "value", "at"),
    [
        ("time", TIMED, None),
        ("time", {k: v for k, v in TIMED.items() if k != "p99_ms"}, "p99_ms"),
        ("time", TIMED | {"more": 1}, "more"),
        *(("time", TIMED | {"iterations": x}, "iterations") for x in (True, "1", 1.0, 0, 1 << 31)),
        *(("time", TIMED | {"median_ms": x}, None) for x in (0, 0.5)),
        *(
            ("time", TIMED | {"median_ms": x}, "median_ms")
            for x in (float("nan"), float("inf"), -1.0, True, "1", None)
        ),
        ("error", {"code": "c", "message": "m"}, None),
        (
            "error",
            {"code": "c", "message": "m", "errors": [{"node": "n"}]},
            "at `$.errors[0]`",
        ),
        ("error", {"code": "c", "message": "\udc80"}, None),
        ("build", built(), None),
        ("build", built(layers=[["l", "K", ["n"], 1]]), "$.layers[0][3]"),
        ("build", built(layers=[["l", "K", ["n"]]]), "$.layers[0]"),
        ("build", built(unconstrained={"n": 1}), "unconstrained"),
        ("put", {}, None),
        ("put", {"a": 1}, "a"),
        ("died", {"signal": None, "status": 256}, "status"),
        ("time", object(), ""),
    ],
)
def test_forms(name, value, at):
    found = misfit(value, FORMS[name])
    assert found is None if at is None else at in str(found)


@pytest.mark.parametrize(("version", "at"), [("8.6", None), ("8.6-x", "tensorrt"), (None, None)])
def test_versions_have_a_form(version, at):
    hello = HELLO | {"protocol": PROTOCOL, "tensorrt": version}
    found = misfit(hello, FORMS["hello"])
    assert found is None if at is None else at in str(found)


GPU = {
    "name": "Orin",
    "compute_capability": "8.7",
    "memory": 100,
    "free": 40,
}
HELLO: dict[str, Any] = {
    "python": "3.8.10",
    "executable": "/usr/bin/python3",
    "host": "orin",
    "cache": "/home/u/.cache/halfwise/worker",
    "driver": None,
    "tf32_override": None,
    "tensorrt": "8.6.0",
    "typing": ["weak"],
    "gpus": [GPU],
}


def info(**changed):
    return worker_info("orin", ["ssh", "orin", "python3"], HELLO | changed)


def test_a_worker_that_can_build():
    found = info()
    assert (found.name, found.gpu, found.compute_capability, found.free_bytes) == (
        *("orin", "Orin", "8.7"),
        40,
    )
    assert found.command == ("ssh", "orin", "python3")
    assert found.trouble == ""
    assert found.notes == (
        "halfwise was run with TensorRT 8.6.0",
        "keeps files in /home/u/.cache/halfwise/worker on orin",
    )


def test_what_is_missing_is_told_together():
    found = info(
        tensorrt=None,
        typing=[],
        gpus=[],
        import_error={"message": "Python cannot import tensorrt: no"},
        cuda_error={"message": "There is no NVIDIA driver here."},
    )
    assert found.trouble == ("Python cannot import tensorrt: no. There is no NVIDIA driver here.")
    assert (found.tensorrt, found.gpu, found.memory_bytes) == (None, None, None)


@pytest.mark.parametrize(
    ("version", "standing"),
    [
        ("10.0.1", "halfwise was not run with TensorRT 10.0.1, checked against its bindings"),
        ("10.3.0", "halfwise was not run with TensorRT 10.3.0, unchecked"),
    ],
)
def test_versions_say_how_well_they_are_known(version, standing):
    assert info(tensorrt=version).notes[0] == standing


@pytest.mark.parametrize("value", ["0", "1"])
def test_an_override_of_tf32_is_told(value):
    found = info(tf32_override=value)
    assert found.tf32_override == value
    assert f"{found.notes[1]}." == found.tf32_remark


def test_an_engine():
    limits = {"min": [1, 2], "opt": [2, 2], "max": [8, 2]}
    io: dict[str, object] = {"name": "x", "mode": "input", "dtype": "float32", "shape": [-1, 2]}
    io |= {"shape_tensor": False, "profiles": [limits, {}]}
    found = described({"io": [io], "profiles": 1, "layers": 4, "device_bytes": 9})
    assert found.tensors[0].limits == (ShapeRange(min=(1, 2), opt=(2, 2), max=(8, 2)),)
    assert (found.profiles, found.layers, found.device_bytes) == (1, 4, 9)


def test_profiles():
    limits = (ShapeRange(min=(1, 4), opt=(2, 4), max=(3, 4)),)
    shared: dict[str, Any] = {"is_input": True, "dtype": "float32", "limits": limits}
    x = EngineTensor(name=TensorName("x"), shape=(-1, 4), shape_tensor=False, **shared)
    fixed = replace(x, name=TensorName("z"), shape=(2, 4))
    size = replace(x, name=TensorName("s"), shape=(2,), shape_tensor=True)
    assert profiles_of(Description((fixed,), 1, 0, 0)) == ()
    (profile,) = profiles_of(Description((x, fixed, size), 1, 0, 0))
    assert (profile.shapes, profile.values) == ({"x": limits[0]}, {"s": limits[0]})


DTYPES = ("float32", "float16", "bfloat16", "int8", "int32", "int64", "bool", "uint8")


def engine(rank=1, **dtypes):
    shape = (-1,) * rank
    tensors = tuple(
        EngineTensor(
            name=TensorName(n), is_input=True, dtype=d, shape=shape, shape_tensor=False, limits=()
        )
        for n, d in dtypes.items()
    )
    return Description(tensors, 1, 1, 0)


@given(arrays(np.float32, array_shapes(min_dims=0, min_side=0)))
def test_arrays_of_every_type_and_shape_come_back(array):
    with np.errstate(all="ignore"):
        feeds = {name: array.astype(np.dtype(name)) for name in DTYPES}
    entries, data = packed(feeds, engine(array.ndim, **{name: name for name in DTYPES}))
    found = unpacked(entries, data)
    assert found.keys() == feeds.keys()
    for name, expected in feeds.items():
        assert found[name].dtype == expected.dtype
        assert found[name].shape == expected.shape
        assert found[name].tobytes() == expected.tobytes()


def test_arrays_that_are_not_contiguous():
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    entries, data = packed({"x": array}, engine(2, x="float32"))
    np.testing.assert_array_equal(unpacked(entries, data)["x"], array)


def test_types_become_the_engines():
    feeds = {"n": np.array([-5, 2**31 - 1]), "x": np.array([0.1, np.nan], np.float32)}
    entries, data = packed(feeds, engine(n="int32", x="float16"))
    assert [entry["dtype"] for entry in entries] == ["int32", "float16"]
    found = unpacked(entries, data)
    assert found["n"].tolist() == [-5, 2**31 - 1]
    np.testing.assert_array_equal(found["x"], feeds["x"].astype(np.float16))


def test_values_and_names_that_the_engine_does_not_take():
    with pytest.raises(CaseError, match="input 'n' holds 2147483648, which int32 cannot hold"):
        packed({"n": np.array([2**31])}, engine(n="int32"))
    with pytest.raises(CaseError, match="The engine's inputs are 'x', the model's 'y'"):
        packed({"y": np.array([1.5])}, engine(x="float32"))
