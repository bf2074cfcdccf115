"""Every record goes to JSON and back unchanged, whatever it holds."""

import json
import math
import os
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pytest

from halfwise import records
from halfwise.metrics.targets import Score
from halfwise.records import (
    SCHEMA_VERSION,
    SEVERITIES,
    Criterion,
    Curve,
    Growth,
    GuardKind,
    Level,
    NodeName,
    Record,
    RunEvidence,
    Sign,
    replace,
)
from halfwise.reporting.remarks import CAUSES
from tests.unit.page.graphs import block, sketched
from tests.unit.records.curves import curve, point
from tests.unit.reporting import runs

KINDS = [k for k in vars(records).values() if isinstance(k, type) and issubclass(k, Record)]
FLOATS = (0.5, math.inf, -math.inf, math.nan)


@dataclass(frozen=True)
class Pair:
    left: int
    right: int


def example(hint: Any, turn: int) -> Any:
    """Return a value of an annotated type; another `turn` gives other numbers and words."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        found = example(parts[turn % len(parts)], turn)
    elif origin is Literal:
        found = parts[turn % len(parts)]
    elif origin is tuple and parts[-1] is Ellipsis:
        found = tuple(example(parts[0], turn + i) for i in range(turn % 3))
    elif origin is tuple:
        found = tuple(example(part, turn) for part in parts)
    elif origin in (dict, Mapping):
        found = {example(parts[0], turn): example(parts[1], turn)}
    elif isinstance(hint, type) and issubclass(hint, Record):
        found = made(hint, turn)
    else:
        ordinary: dict[Any, Any] = {
            bool: turn % 2 == 0,
            int: turn,
            float: FLOATS[turn % len(FLOATS)],
        }
        ordinary[type(None)] = None
        found = ordinary.get(hint, f"a {turn} \u202e\x1b[2J")
    return found


def made(kind: type[Record], turn: int) -> Record:
    """Return a record with every field given, those with a default included."""
    if kind is Curve:
        return curve(point("0 2", 2.0, FLOATS[turn % len(FLOATS)]), plan=0)
    if kind is RunEvidence:
        return RunEvidence(graph=sketched(block("a", "x")))
    if kind is records.Graph:
        return sketched(block("a", "x"))
    return kind(**{n: example(hint, turn) for n, hint in get_type_hints(kind).items()})


@pytest.mark.parametrize("kind", KINDS)
def test_every_record_goes_to_json_and_back(kind):
    for turn in range(5):
        record = made(kind, turn)
        written = record.to_json()
        json.loads(written, parse_constant=pytest.fail)
        again = kind.from_json(written)
        # NaN equals NaN here.
        assert repr(again) == repr(record)
        assert again.to_json() == written


def test_whole_runs_go_to_json_and_back():
    broken = runs.output_error(max_abs=math.inf, snr_db=-math.inf, cosine=math.nan)
    failed = runs.run(verdict=runs.verdict(outputs={"y": broken}))
    for run in (runs.run(), runs.verification(), failed):
        assert repr(type(run).from_json(run.to_json())) == repr(run)


@pytest.mark.parametrize("kind", KINDS)
def test_every_record_is_frozen_closed_and_documented(kind):
    assert kind.__doc__
    record = made(kind, 1)
    with pytest.raises(TypeError):
        kind("by place")
    with pytest.raises(ValueError, match="surplus"):
        msgspec.convert({**record.to_dict(), "surplus": 1}, kind, strict=False)
    for name, hint in get_type_hints(kind).items():
        with pytest.raises(AttributeError):
            setattr(record, name, getattr(record, name))
        if get_origin(hint) is Literal:
            with pytest.raises(ValueError, match=name):
                msgspec.convert({**record.to_dict(), name: "\x1b[2J"}, kind, strict=False)


@pytest.mark.parametrize(
    ("value", "text"), [(math.inf, '"Infinity"'), (-math.inf, '"-Infinity"'), (math.nan, '"NaN"')]
)
def test_numbers_that_json_lacks_are_strings(value, text):
    growth = Growth(node=NodeName("a"), error=0.5, inherited=value)
    assert growth.to_json().endswith(f'"inherited":{text}}}')


@pytest.mark.parametrize("number", [np.float64(0.5), np.float32(0.5), Score(0.5, 3)])
def test_numbers_of_other_classes_are_written_as_any(number):
    growth = Growth(node=NodeName("a"), error=number, inherited=0.25)
    again = Growth.from_json(growth.to_json())
    assert again == Growth(node=NodeName("a"), error=0.5, inherited=0.25)
    assert type(again.error) is float


def test_every_level_and_guard_has_a_word():
    assert set(get_args(Level)) == {"emulated", "recorded", "engine"}
    assert set(get_args(GuardKind)) == CAUSES.keys()


def test_what_a_terminal_acts_on_is_escaped_and_stays_the_same_name():
    name = "caf\u00e9 8\u00d71 \x1b[31m\x7f\x9b31m\u202egnp.exe\u2066\u2028\u061c\U000e0041"
    sign = Sign(severity="info", text=name)
    text = sign.to_json(indent=1)
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "caf\u00e9 8\u00d71" in text
    assert json.loads(text)["text"] == name
    assert Sign.from_json(text) == sign


def test_bytes_of_names_that_are_no_text_are_escaped():
    nodes = (NodeName(os.fsdecode(b"\xff")),)
    sign = Sign(severity="info", text=os.fsdecode(b"caf\xe9 \xe2\x82\xac"), nodes=nodes)
    text = sign.to_json(indent=1)
    assert json.loads(text)["text"] == "caf\\udce9 €"
    assert Sign.from_json(text).nodes == ("\\udcff",)


def test_without_any_wish_no_threshold_is_set():
    plain = Criterion()
    assert (plain.max_abs, plain.rel_max, plain.snr_db, plain.cosine) == (None,) * 4
    assert plain.metric is None
    assert plain.agreement == 0.99
    assert plain.metric_drop == 0


def test_the_worst_severity_is_first():
    assert SEVERITIES == ("error", "warning", "info")


def test_the_fields_that_others_read():
    content = json.loads(runs.run().to_json())
    assert content["schema_version"] == SCHEMA_VERSION == 1
    assert content["plan"]["keep"][0].keys() >= {"node", "op", "precision", "reason", "guard"}
    assert content["plan"].keys() >= {"constants", "unsupported", "minimal"}
    assert content["verdict"].keys() >= {
        *("passed", "level", "outputs", "worst_sample", "intermediate_nonfinite", "metric"),
    }
    assert content["verdict"]["outputs"]["logits"].keys() >= {
        *("max_abs", "rel_max", "mean_abs", "snr_db", "cosine", "nonfinite"),
    }
    assert content["cost"].keys() >= {"evaluations", "seconds", "peak_rss_bytes"}
    assert content["provenance"]


def test_replace_takes_records_and_dataclasses_and_no_unknown_names():
    growth = Growth(node=NodeName("a"), error=0.5, inherited=0.25)
    assert replace(growth, error=1.0) == Growth(node=NodeName("a"), error=1.0, inherited=0.25)
    assert growth.error == 0.5
    assert replace(Pair(1, 2), right=3) == Pair(1, 3)
    for one in (growth, Pair(1, 2)):
        with pytest.raises(TypeError, match="surplus"):
            replace(one, surplus=1)  # type: ignore[call-arg]
