import json
import math
import os
from typing import get_args

import pytest
from pydantic import ValidationError

from halfwise import records
from halfwise.records import GuardKind, Histogram, LeftAlone, Level, NodeName, Record, Side
from halfwise.reporting.guards import CAUSES

KINDS = [k for k in vars(records).values() if isinstance(k, type) and issubclass(k, Record)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_record_is_frozen_closed_and_documented(kind):
    assert kind.model_config["frozen"]
    assert kind.model_config["extra"] == "forbid"
    assert kind.model_config["ser_json_inf_nan"] == "strings"
    assert kind.__doc__


def test_a_record_cannot_be_changed():
    histogram = Histogram(first=0, counts=(1,), zeros=0)
    with pytest.raises(ValidationError, match="frozen"):
        histogram.zeros = 1  # type: ignore[misc]


def test_an_unknown_field_is_refused():
    with pytest.raises(ValidationError, match="surplus"):
        Histogram.model_validate({"first": 0, "counts": [], "zeros": 0, "surplus": 1})


@pytest.mark.parametrize(
    ("value", "text"), [(math.inf, '"Infinity"'), (-math.inf, '"-Infinity"'), (math.nan, '"NaN"')]
)
def test_numbers_that_json_lacks_are_strings(value, text):
    side = Side(minimum=value, maximum=1.5, mean=0, deviation=0)
    assert f'"minimum":{text},"maximum":1.5' in side.model_dump_json()


def test_every_level_and_guard_has_a_word():
    assert set(get_args(Level)) == {"emulated", "recorded", "engine"}
    assert set(get_args(GuardKind)) == CAUSES.keys()


def test_what_a_terminal_acts_on_is_escaped_and_stays_the_same_name():
    name = "caf\u00e9 8\u00d71 \x1b[31m\x7f\x9b31m\u202egnp.exe\u2066\u2028\u061c\U000e0041"
    left = LeftAlone(op=name, nodes=(), reason="")
    text = left.model_dump_json(indent=1)
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "caf\u00e9 8\u00d71" in text
    assert json.loads(text)["op"] == name
    assert LeftAlone.model_validate_json(text) == left


def test_bytes_of_names_that_are_no_text_are_escaped():
    left = LeftAlone(
        op=os.fsdecode(b"caf\xe9 \xe2\x82\xac"), nodes=(NodeName(os.fsdecode(b"\xff")),), reason=""
    )
    text = left.model_dump_json(indent=1)
    assert json.loads(text)["op"] == "caf\\udce9 €"
    assert LeftAlone.model_validate_json(text).nodes == ("\\udcff",)
