"""One fault in one frame of a recorded conversation, drawn by Hypothesis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bench.attacks.replay import LARGE, Frame

Recorded = Mapping[str, Sequence[Sequence[Frame]]]
"""The frames of every answer, by operation."""
Fault = dict[str, Any]

SLOW = 15
"""One in this many lasts until a time-out."""

_NUMBERS = (-1, 0, 1, True, 2**31, 2**53 + 1, 2**63, 2**70, 1.5, -1.5, 1e308, "@huge@")
_NUMBERS_ALIKE = (*_NUMBERS, float("nan"), float("inf"), float("-inf"), "1")
_TEXTS = (
    *("", "@long@", "\ud800", "\x00", "\x1b[2J", "../../../etc/passwd", "/etc/passwd"),
    *("0" * 64, "g" * 64, "float64", "FLOAT", "result", "y\n" * 500, "\u202e"),
)
_OTHERS = (None, True, [], {}, [[]], [1, 2], {"a": 1}, *LARGE)
_VALUES = st.sampled_from((*_NUMBERS_ALIKE, *_TEXTS, *_OTHERS))
_LENGTHS = st.sampled_from(
    (
        *((None, 1 << 60), (None, 1 << 33), (None, 1 << 30), (1 << 31, None), (1 << 26, None)),
        *((0, None), (None, 1), (3, None), (2**32 - 1, 2**64 - 1)),
    )
)
_HEADERS = st.sampled_from(
    (
        *(b"", b"[]", b"null", b"{", b"\xff\xfe", b'{"kind": "result", "kind": 1}', b"1e999"),
        *(name.encode() for name in LARGE),
        b'{"id": 1, "kind": "result", "x": "\x00"}',
    )
)
_INSTEAD = st.sampled_from(
    (
        {"kind": "error", "code": "@long@", "message": "m"},
        {"kind": "error", "code": "run", "message": "@longer@"},
        {"kind": "error", "code": "parse", "message": "m", "errors": [{"node": 1}]},
        {"kind": "error", "code": "run", "message": "m", "log": "no list"},
        {"kind": "error", "message": "m"},
        {"kind": "died"},
        {"kind": "died", "reason": "signal", "signal": "@long@", "status": None},
        {"kind": "died", "reason": "exit", "signal": None, "status": 1 << 40},
        {"kind": "result"},
        {"kind": "heartbeat"},
        {"kind": ["result"]},
        {"kind": "log", "severity": "loud", "text": "t"},
        {"kind": "log", "severity": "info", "text": 1},
        {"kind": "progress", "phase": None, "done": "a", "total": -1},
    )
)
_PAYLOADS = ("shorter", "longer", "none", "far longer", "flipped")
_ENDLESS = ("byte by byte", "log", "progress", "started", "waiting", "waiting once", "silence")


def faults(recorded: Recorded, slow: Sequence[str] = ()) -> st.SearchStrategy[Fault]:
    """Return a strategy of faults.

    Args:
        recorded: The conversation.
        slow: Operations in which the worker may stay silent or never end, until a time-out.
    """
    places = [
        {"op": op, "nth": nth, "frame": index}
        for op, answers in recorded.items()
        if op != "warm"
        for nth, frames in enumerate(answers)
        for index in range(len(frames))
    ]
    # A few lines of a log test as much as all.
    ends = [p for p in places if _frame(recorded, p)["header"]["kind"] != "log"]
    logs = [p for p in places if p not in ends][:3]

    def at(place: Fault) -> st.SearchStrategy[Fault]:
        quick = _quick(place, _frame(recorded, place)["header"])
        if place["op"] not in slow:
            return quick
        late = st.one_of(
            _fault(place, "endless", what=st.sampled_from(_ENDLESS)),
            _fault(place, "cut", share=st.floats(0, 0.99)),
            _fault(place, "lengths", lengths=st.just((1 << 25, None))),
        )
        return st.integers(0, SLOW).flatmap(lambda number: quick if number else late)

    return st.sampled_from([*ends, *logs]).flatmap(at)


def _quick(place: Fault, header: Frame) -> st.SearchStrategy[Fault]:
    """Return faults that do not wait for a time-out."""
    paths = list(_paths(header))
    inner = [path for path in paths if isinstance(_at(header, path), dict)]
    codes = st.sampled_from((0, 1, 255))
    way = st.sampled_from(paths)
    kinds = [
        _fault(place, "set", path=way, value=_VALUES),
        _fault(place, "set", path=way, value=_VALUES),
        _fault(place, "set", path=st.just(["id"]), value=_VALUES),
        _fault(place, "delete", path=way),
        _fault(place, "payload", how=st.sampled_from(_PAYLOADS)),
        _fault(place, "lengths", lengths=_LENGTHS),
        _fault(place, "raw header", hex=_HEADERS.map(bytes.hex)),
        _fault(place, "cut", share=st.floats(0, 0.99), exit=codes),
        _fault(
            place,
            "noise",
            hex=st.binary(min_size=1, max_size=50).map(bytes.hex),
            times=st.sampled_from((1, 1000, 1_000_000)),
        ),
        _fault(place, "twice"),
        _fault(place, "exit", exit=codes),
        _fault(place, "instead", header=_INSTEAD),
        _fault(place, "endless", what=st.sampled_from(("noise", "payload"))),
    ]
    if inner:
        kinds.append(_fault(place, "add", path=st.sampled_from(inner)))
    return st.one_of(kinds)


def drawn(recorded: Recorded, count: int, slow: Sequence[str] = ()) -> list[Fault]:
    """Return `count` faults, the same for the same conversation."""
    found: list[Fault] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(faults(recorded, slow))
    def draw(fault: Fault) -> None:
        found.append(fault)

    draw()
    return found


def _fault(place: Fault, kind: str, **parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Fault]:
    return st.fixed_dictionaries(
        {**{k: st.just(v) for k, v in place.items()}, "kind": st.just(kind), **parts}
    )


def _frame(recorded: Recorded, place: Fault) -> Frame:
    return recorded[place["op"]][place["nth"]][place["frame"]]


def _paths(value: object, way: tuple[Any, ...] = ()) -> Iterator[list[Any]]:
    """Yield the path to every part of a header; of long lists, to the first three items."""
    parts: list[tuple[Any, object]] = []
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, list):
        parts = list(enumerate(value[:3]))
    for step, part in parts:
        yield [*way, step]
        yield from _paths(part, (*way, step))


def _at(header: object, path: Sequence[Any]) -> object:
    for step in path:
        header = header[step]  # type: ignore[index]
    return header
