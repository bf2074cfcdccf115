"""The bench of both judges: its models, its figures, and one model that it really judges."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from bench import judges, published
from bench.judges import Found
from bench.judging import Judges, Model, Written
from tests import models
from tests.unit.graph.sketch import Sketch

GOOD = Written(passed=True, built=True, right=True, said=("0.001 of the largest value",))


def figure(figures, ends):
    (found,) = [f for f in figures if f.what.endswith(ends)]
    return found


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (Found("good", True, True, {"fp16": GOOD}), 0),
        (Found("wrong", True, True, {"fp16": Written(True, right=False)}), 1),
        (Found("cancelling", True, False, {"fp16": Written(True, right=False)}), 0),
        (Found("failed", True, True, {"fp16": Written(False, right=False)}), 0),
    ],
)
def test_what_passed_counts_where_fp32_is_right_on_the_device(found, wrong):
    figures = judges.on_webgpu("x", [found])
    counted = figure(figures, "though FP32 is right there")
    assert (counted.measured, counted.reached) == (wrong, not wrong)
    assert (found.name in counted.note) == bool(wrong)


def test_refused_and_folded_files_are_named_with_their_format():
    found = Found(
        *("m", True, True),
        {"fp16": Written(True, built=True, folded=("kept",)), "bf16": Written(True, built=False)},
    )
    of_refused = Found("refused", False, True, {"fp16": Written(True)})
    figures = judges.in_builder("x", [found, of_refused])
    assert figure(figures, "builder takes").measured == 1
    assert "m bf16" in figure(figures, "is taken").note
    assert "m fp16: kept" in figure(figures, "folded").note
    assert not any(f.reached for f in figures[1:])


def test_an_emulation_that_passes_what_fails_is_counted():
    found = [Found("a", plain=(True, False)), Found("b", plain=(False, True)), Found("c")]
    decides, missed = judges.beside_emulation(found)
    assert (decides.measured, missed.measured, missed.note) == (0, 1, "a")


def test_every_class_is_among_the_models(tmp_path: Path):
    assert len(list(judges.ill(tmp_path))) == len(models.CLASSES)


def test_node_tests_have_inputs_that_onnx_runtime_takes(tmp_path: Path):
    chosen = list(islice(judges.node_tests(tmp_path), 3))
    assert len(chosen) == 3
    for model in chosen:
        session = onnxruntime.InferenceSession(model.file)
        assert {i.name for i in session.get_inputs()} == set(model.samples[0])


def test_sounds_and_pictures_differ_and_stay_in_range():
    voices = [published.voice(1, seed) for seed in range(2)]
    assert all(np.abs(v).max() <= 1 and v.shape == (published.RATE,) for v in voices)
    assert not np.array_equal(voices[0], voices[1])
    pictures = list(published.written(32, 64))
    assert len({p.tobytes() for p in pictures}) == published.COUNT
    assert {p.shape for p in published.cut(320, 320)} == {(320, 320, 3)}


def save(path: Path, op: str) -> Path:
    s = Sketch(17)
    onnx.save(s.proto(s.op(op, s.op("Abs", s.input("x", [1, 64])), name="y")), path)
    return path


def test_a_model_before_both_judges(rtx, webgpu, tmp_path: Path):
    samples = [{"x": np.full((1, 64), n, np.float32)} for n in range(1, 5)]
    model = Model("m", save(tmp_path / "m.onnx", "Sqrt"), samples)
    both = Judges(rtx, webgpu, tmp_path)
    found = judges.examined(both, model, plain=True)
    assert found.built
    assert found.right
    assert found.plain == (True, True)
    assert {to: w.built for to, w in found.written.items()} == {"fp16": True, "bf16": True}
    assert not both.right(model, save(tmp_path / "wrong.onnx", "Neg"))[0]


def test_what_was_found_is_read_back_from_json():
    stored = json.loads(json.dumps(asdict(Found("m", True, True, {"fp16": GOOD}, (True, False)))))
    back = judges._read(stored)
    assert json.loads(json.dumps(asdict(back))) == stored
    assert back.written["fp16"].passed
