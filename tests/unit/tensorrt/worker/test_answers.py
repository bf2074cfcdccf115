import pytest

from halfwise.records import EngineTensor, TensorName
from halfwise.tensorrt.worker.answers import (
    BY_OP,
    MOST_CACHE_BYTES,
    MOST_INSPECTION_VALUES,
    Conversation,
    built_of,
    chunk_of,
    crowded,
    missing_of,
    ran_of,
)
from halfwise.tensorrt.worker.described import Description
from halfwise.tensorrt.worker.frames import Unfit

A, B = "a" * 64, "b" * 64


def admit(expected, result, size=0):
    Conversation(3, expected).admit({"id": 3, "kind": "result", **result}, size)


def file(sha256, size=1, path=None):
    return {"sha256": sha256, "bytes": size, "path": path or f"/cache/files/{sha256}"}


def built(**changed):
    return {
        "engine": file(A),
        "timing_cache": file(B),
        "timing_cache_fits": True,
        "seconds": 1,
        "layers": [["l", "ELEMENTWISE", ["n"], True]],
        "unconstrained": {"n": "why"},
        **changed,
    }


BUILT = built_of(["n"], lambda: "/cache")


def tensor(name, shape, *, is_input=False):
    return EngineTensor(
        name=TensorName(name),
        is_input=is_input,
        dtype="float32",
        shape=shape,
        shape_tensor=False,
        limits=(),
    )


ENGINE = Description((tensor("x", (-1, 4), is_input=True), tensor("y", (-1, 3))), 1, 2, 7)


def ran(*outputs, **changed):
    base = {"name": "y", "dtype": "float32", "shape": [2, 3], "debug": False}
    return {"outputs": [base | o for o in outputs], "seen": [], **changed}


DEBUG = {"name": "h", "debug": True, "shape": [5]}


@pytest.mark.parametrize(
    ("expected", "result", "size"),
    [
        (missing_of([A, B]), {"missing": [B]}, 0),
        (chunk_of(10, 8, 8), {"total": 10}, 2),
        (chunk_of(0, 0, 8), {"total": 0}, 0),
        (BUILT, built(), 0),
        (ran_of(ENGINE, None, 8), ran({}), 24),
        (ran_of(ENGINE, None, 8), ran({}, DEBUG), 44),
        (ran_of(ENGINE, ["h"], 8), ran({}, DEBUG, seen=["h", "i"]), 44),
        (ran_of(ENGINE, ["y"], 8), ran({}, {"debug": True}), 48),
        (BY_OP["put"], {}, 0),
    ],
)
def test_what_was_asked_for_is_admitted(expected, result, size):
    admit(expected, result, size)


@pytest.mark.parametrize(
    ("expected", "result", "size", "told"),
    [
        (missing_of([A]), {"missing": [B]}, 0, "files that were not asked for"),
        (missing_of([A]), {"missing": [A, A]}, 0, "files that were not asked for"),
        (missing_of([A]), {"missing": ["../../etc/passwd"]}, 0, "missing.0"),
        (chunk_of(10, 8, 8), {"total": 11}, 2, "11 bytes, but 10 were announced"),
        (chunk_of(10, 0, 8), {"total": 10}, 1, "1 bytes of the file follow instead of 8"),
        (chunk_of(10, 8, 8), {"total": 10}, 8, "instead of 2"),
        (BUILT, built(engine=file(A, path="/etc/passwd")), 0, "a path"),
        (BUILT, built(engine=file(A, path=f"/cache/files/{B}")), 0, "a path"),
        (BUILT, built(engine=file(A, 0)), 0, "the engine is empty"),
        (BUILT, built(timing_cache=file(B, MOST_CACHE_BYTES + 1)), 0, "the timing cache"),
        (BUILT, built(unconstrained={"m": ""}), 0, "a node that was not asked for"),
        (BUILT, built(), 5, "5 bytes follow"),
        (ran_of(ENGINE, None, 8), ran(), 0, "outputs are not the engine's"),
        (ran_of(ENGINE, None, 8), ran({}, {}), 48, "outputs are not the engine's"),
        (ran_of(ENGINE, None, 8), ran({"name": "z"}), 24, "outputs are not the engine's"),
        (ran_of(ENGINE, None, 8), ran({"dtype": "float16"}), 12, "type and shape"),
        (ran_of(ENGINE, None, 8), ran({"shape": [2, 4]}), 32, "type and shape"),
        (ran_of(ENGINE, None, 8), ran({"shape": [6]}), 24, "type and shape"),
        (ran_of(ENGINE, None, 8), ran({"shape": [1 << 40, 3]}), 24, "too many for inputs of 8"),
        (ran_of(ENGINE, None, 8), ran({}), 23, "23 bytes follow, but the arrays take 24"),
        (ran_of(ENGINE, ["i"], 8), ran({}, DEBUG), 44, "tensors that were not asked for"),
        (ran_of(ENGINE, None, 8), ran({}, {"debug": True}), 48, "tensors that were not asked for"),
        (BY_OP["put"], {}, 1, "1 bytes follow"),
    ],
)
def test_what_was_not_asked_for_is_refused(expected, result, size, told):
    with pytest.raises(Unfit, match=told):
        admit(expected, result, size)


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
        ([port(), port()], "the same name"),
        ([port(mode="output")], "wrong number of profiles"),
        ([port(profiles=[{}, {}])], "wrong number of profiles"),
        ([port(shape=[4])], "does not fit the shape"),
        ([port(profiles=[{"min": [-1, 4], "opt": [1, 4], "max": [1, 4]}])], "does not fit"),
    ],
)
def test_a_description_agrees_with_itself(io, told):
    result = {"io": io, "profiles": 1, "layers": 3, "device_bytes": 7}
    if told is None:
        admit(BY_OP["describe"], result)
    else:
        with pytest.raises(Unfit, match=told):
            admit(BY_OP["describe"], result)


LINE = {"kind": "log", "severity": "info", "text": "t"}


@pytest.mark.parametrize(
    "headers",
    [
        [{"kind": "waiting"}, {"kind": "started"}, LINE],
        [{**LINE, "id": 1}, {**LINE, "id": None}],  # TensorRT's threads go on after a request
        [{"kind": "result", "id": 0}],  # told ahead
    ],
)
def test_what_may_come_before(headers):
    conversation = Conversation(3, BY_OP["put"])
    for header in headers:
        conversation.admit({"id": 3, **header}, 0)


@pytest.mark.parametrize(
    "headers",
    [
        [{"kind": "waiting"}] * 2,
        [{"kind": "started"}] * 2,
        [{"kind": "started"}, {"kind": "waiting"}],
        [{"kind": "result", "id": 2}],
        [{"kind": "result", "id": True}],
        [{"kind": "result", "id": None}],
        [{"kind": "progress", "id": 2, "phase": "p", "done": 1, "total": 1}],
        [{**LINE, "id": 4}],
        [{"kind": "heartbeat"}],
        [{"kind": ["result"]}],
        [{"kind": "died", "reason": "whim", "signal": None, "status": None}],
    ],
)
def test_what_may_not(headers):
    conversation = Conversation(3, BY_OP["put"])
    *before, last = headers
    for header in before:
        conversation.admit({"id": 3, **header}, 0)
    with pytest.raises(Unfit):
        conversation.admit({"id": 3, **last}, 0)


def test_an_inspection_has_an_end():
    assert crowded(memoryview(b'{"Layers": []}')) == ""
    assert crowded(memoryview(b"," * (MOST_INSPECTION_VALUES + 1)))
