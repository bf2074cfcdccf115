"""A share of inputs that may fail: `--failing`, on a model whose square overflows for some."""

from typing import Any

import numpy as np
import onnx
import pytest

from halfwise import api
from tests.unit.graph.sketch import Sketch

COUNT, LARGE = 400, range(5, 400, 57)
"""Samples, and those whose squares leave the range of FP16: 7 of them."""


def product(weights: np.ndarray) -> tuple[Sketch, str]:
    """Return a graph that multiplies [N, 8] with weights, and its last value."""
    sketch = Sketch(17)
    x = sketch.input("x", ["N", 8])
    return sketch, sketch.op("MatMul", x, weights.astype(np.float32), name="product")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place, rng = tmp_path_factory.mktemp("rate"), np.random.default_rng(0)
    sketch, h = product(rng.standard_normal((8, 8)) / 3)
    square = sketch.op("Mul", h, h, name="squared")
    onnx.save(sketch.proto(sketch.op("Sqrt", square, name="root")), place / "model.onnx")
    rows = rng.standard_normal((COUNT, 8)).astype(np.float32)
    np.savez(place / "x.npz", x=rows)
    low = api.fix(place / "model.onnx", place / "x.npz", lower=[".*"], no_repair=True).model
    assert low is not None
    onnx.save(low, place / "low.onnx")
    rows[LARGE] *= 2000
    np.savez(place / "x.npz", x=rows)
    return place


@pytest.mark.parametrize(
    ("share", "code", "says"),
    [
        ("5%", 0, "7 of 400 samples fail, so at most 3.3 % of inputs"),
        ("0.03", 10, "436 samples"),
        ("1%", 10, "7 of 400 samples fail, and 1 % of inputs may"),
    ],
)
def test_the_bound_is_judged(folder, call, share, code, says):
    files = (folder / "model.onnx", folder / "low.onnx", "--inputs", folder / "x.npz")
    ended = call("verify", *files, "--failing", share, "-o", "run")
    assert ended.code == code, ended.err
    assert says in " ".join(ended.out.split())
    verdict = ended.record["verdict"]
    assert verdict["failure_bound"]["failing"] == 7
    assert verdict["judged"] == (share != "0.03")


def test_most_samples_are_held_out(folder):
    run = api.fix(folder / "model.onnx", folder / "x.npz", failing="1%").run
    assert len(run.verdict.samples) == 300
    assert run.verdict.passed
    assert run.verdict.failure_bound is not None
    assert run.verdict.failure_bound.upper <= 0.01


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """A folder with a small classifier, samples to search on and 24 others."""
    place, rng = tmp_path_factory.mktemp("few"), np.random.default_rng(0)
    sketch, scores = product(rng.standard_normal((8, 8)))
    onnx.save(sketch.proto(sketch.op("Softmax", scores, name="classes")), place / "model.onnx")
    np.savez(place / "x.npz", x=rng.standard_normal((8, 8)).astype(np.float32))
    np.savez(place / "unseen.npz", x=rng.standard_normal((24, 8)).astype(np.float32))
    return place


@pytest.mark.parametrize(("share", "needed"), [("5%", 59), ("20%", None)])
def test_samples_too_few_to_show_the_share_count_as_no_failure(few, tmp_path, share, needed):
    files = (few / "model.onnx", few / "x.npz")
    options: Any = {"heldout": few / "unseen.npz", "failing": share, "allow_random": True}
    run = api.fix(*files, out=tmp_path / "run", **options).run
    verdict, bound = run.verdict, run.verdict.failure_bound
    assert bound is not None
    assert run.search is not None
    assert (bound.judged, bound.failing, bound.joined, run.search.joined) == (24, 0, 0, ())
    assert verdict.passed == verdict.judged == (needed is None)
    assert [failure.numbers["needed"] for failure in verdict.failures] == [
        each for each in [needed] if each
    ]
    steps = {step.kind: step for step in run.next_step}
    assert "choose" not in steps
    assert ("enough-samples" in steps) == (needed is not None)


def test_after_verify_only_more_samples_are_missing(few, call):
    files = (few / "model.onnx", few / "model.onnx", "--inputs", few / "unseen.npz")
    ended = call("verify", *files, "--failing", "5%", "--allow", "random", "-o", "run")
    assert (ended.code, ended.record["verdict"]["judged"]) == (10, False)
    (step,) = ended.record["next_step"]
    assert (step["kind"], step["numbers"]["needed"]) == ("enough-samples", 59)


def test_no_engine_is_built_where_the_samples_cannot_show_the_share(folder, call):
    ended = call(
        *("fix", folder / "model.onnx", "--inputs", folder / "x.npz", "--failing", "0.1%"),
        *("--target", "tensorrt", "--trt-command", "no-such-python", "-o", "run"),
    )
    assert ended.code == 3
    assert "2995 held-out samples; there are 300" in " ".join(ended.err.split())
