"""Every form takes what the worker sends, and nothing of another type."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from halfwise.tensorrt.versions import version_of
from halfwise.tensorrt.worker import forms
from halfwise.tensorrt.worker.answers import BY_OP

RECORDED = json.loads((Path(__file__).parents[4] / "bench/attacks/answers.json").read_text())
FORMS = {op: expected.model for op, expected in BY_OP.items()} | {
    "have": forms.Missing,
    "get": forms.Chunk,
    "build": forms.Built,
    "run": forms.Ran,
}


def frames():
    """Return form and header of every frame that the stand-in has sent."""
    found = []
    for answers in RECORDED.values():
        for op, frame in ((o, f) for o, many in answers.items() for fs in many for f in fs):
            header = {k: v for k, v in frame["header"].items() if k not in ("id", "kind")}
            kind = frame["header"]["kind"]
            if kind == "result" and op != "warm":
                found.append((FORMS[op], header))
            elif kind != "result":
                found.append((forms.KINDS[kind], header))
    return found


def test_what_the_worker_sends_fits():
    assert len(frames()) > 100
    for form, header in frames():
        form.model_validate(header)


def test_another_type_a_missing_and_an_unknown_field_do_not():
    distinct = {form: header for form, header in frames() if header}
    assert len(distinct) >= 9
    for form, header in distinct.items():
        for name in header:
            required = form.model_fields[name].is_required()
            less = {k: v for k, v in header.items() if k != name}
            for wrong in ({**header, name: object()}, *([less] if required else [])):
                with pytest.raises(ValidationError):
                    form.model_validate(wrong)
        with pytest.raises(ValidationError):
            form.model_validate({**header, "unheard": 1})


@pytest.mark.parametrize("wrong", [True, "1", 1.0, -1, 1 << 70, None])
def test_a_number_is_no_boolean_text_or_fraction(wrong):
    with pytest.raises(ValidationError):
        forms.Chunk.model_validate({"total": wrong})


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0, True, "1"])
def test_times_are_finite(wrong):
    with pytest.raises(ValidationError):
        forms.Inspected.model_validate({"milliseconds": {"layer": wrong}})


@pytest.mark.parametrize("text", ["8.6-x", "8.6.", "10.0 GA", "x"])
def test_a_version_that_nothing_here_reads_is_none(text):
    hello = next(header for form, header in frames() if form is forms.Hello)
    forms.Hello.model_validate({**hello, "tensorrt": "10.3.0.post1+cuda12"})
    with pytest.raises(ValueError, match="is not a version"):
        version_of(text)
    with pytest.raises(ValidationError):
        forms.Hello.model_validate({**hello, "tensorrt": text})
