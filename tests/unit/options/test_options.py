import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.case import Rules, Runtime, Settings
from halfwise.declarations import Options, spelt
from halfwise.emulation.budget import call
from halfwise.errors import RunFailed, UsageError
from halfwise.formats import BF16, FP16
from halfwise.options.options import bounded, understand
from halfwise.progress import Silent
from halfwise.records import Criterion


def test_without_options_the_defaults_hold():
    request = understand("x.npz", {})
    assert request.criterion == Criterion()
    assert request.settings == Settings()
    assert request.given == {}
    assert request.data.inputs == "x.npz"
    assert (request.settings.allow_random, request.data.heldout) == (False, None)


def test_none_means_not_given():
    nothing = dict.fromkeys(Options.__annotations__)
    assert understand("x.npz", nothing) == understand("x.npz", {})


def test_options_reach_those_who_need_them():
    request = understand(
        "x.npz",
        {
            "heldout": "y.npz",
            "labels": "l.txt",
            "heldout_labels": "m.txt",
            "preprocess": "p.py:f",
            "allow_random": True,
            "snr_db": 40.0,
            "keep": ["a"],
            "keep_op": ("Pow",),
            "lower": ["b", "c"],
            "io": "fp16",
            "accumulate": "fp16",
            "headroom": 3,
            "margin": 0.5,
            "time_budget": 0,
            "device": "cuda",
            "ort_library": ["a.so"],
        },
    )
    assert request.data.heldout == "y.npz"
    assert (request.data.labels, request.data.heldout_labels) == (Path("l.txt"), Path("m.txt"))
    assert request.data.preprocess == "p.py:f"
    assert request.criterion == Criterion(snr_db=40)
    assert request.settings == Settings(
        rules=Rules(("a",), ("Pow",), ("b", "c")),
        allow_random=True,
        io="fp16",
        accumulate="fp16",
        headroom=3,
        margin=0.5,
        time_budget=0,
        runtime=Runtime("cuda", (Path("a.so"),)),
    )


def test_the_low_format_is_one_that_can_be_lowered_to():
    assert understand("x.npz", {}).settings.fmt is FP16
    assert understand("x.npz", {"to": "fp16", "io": "fp16"}).settings.fmt is FP16
    settings = understand("x.npz", {"to": "bf16", "io": "bf16", "accumulate": "fp32"}).settings
    assert (settings.fmt, settings.io) == (BF16, "bf16")


def test_what_was_given_is_told_as_text():
    arrays = {"x": np.zeros(3)}
    request = understand(
        arrays, {"heldout": arrays, "headroom": 2, "keep": ["a", "b"], "preprocess": "p.py:f"}
    )
    assert request.given == {
        "heldout": "in memory (dict)",
        "headroom": "2",
        "keep": "a, b",
        "preprocess": "p.py:f",
    }


def test_an_unknown_option_is_refused():
    with pytest.raises(UsageError, match="tolerance"):
        understand("x.npz", {"tolerance": 1})


@pytest.mark.parametrize("name", ["max_abs", "time_budget"])
@given(value=st.floats())
def test_numbers_that_are_none_or_below_zero_are_refused(name, value):
    if 0 <= value < float("inf"):
        assert understand("x.npz", {name: value}).given == {name: str(value)}
    else:
        option = spelt(name)
        with pytest.raises(UsageError, match=option):
            understand("x.npz", {name: value})


@pytest.mark.parametrize(
    "given_options",
    [
        {"headroom": 0.99},
        {"margin": 0},
        {"margin": 1.01},
        {"cosine": 1.1},
        {"cosine": float("nan")},
        {"snr_db": float("inf")},
        {"metric": "top1", "metric_drop": -0.1},
        {"io": "fp8"},
        {"to": "fp32"},
        {"to": "fp8"},
        {"io": "bf16"},
        {"io": "fp16", "to": "bf16"},
        {"accumulate": "fp16", "to": "bf16"},
        {"accumulate": "bf16"},
        {"device": "tpu"},
    ],
)
def test_values_outside_their_domain_are_refused(given_options):
    with pytest.raises(UsageError) as error:
        understand("x.npz", given_options)
    assert error.value.hint


@pytest.mark.parametrize(
    "given_options",
    [
        {"headroom": 1},
        {"margin": 1},
        {"cosine": 0.01},
        {"cosine": 1},
        {"snr_db": 0.1},
        {"rel_max": 0.99},
        {"agreement": 0.01},
        {"metric": "psnr", "metric_drop": 60},
        {"rel_max": 0},
        {"metric": "top1", "metric_drop": 0},
    ],
)
def test_values_at_the_edge_are_taken(given_options):
    request = understand("x.npz", given_options)
    assert request.given == {name: str(value) for name, value in given_options.items()}


@pytest.mark.parametrize(
    "given_options",
    [
        {"rel_max": 1},
        {"rel_max": 1e308},
        {"snr_db": 0},
        {"snr_db": -1000},
        {"cosine": -1},
        {"cosine": 0},
        {"agreement": 0},
        {"metric": "top1", "metric_drop": 1},
        {"metric": "mask-iou", "metric_drop": 1e9},
    ],
)
def test_what_zeros_would_pass_is_refused(given_options):
    with pytest.raises(UsageError, match=r"outputs zeros|let it drop to 0"):
        understand("x.npz", given_options)


@pytest.mark.parametrize(
    ("metric", "labels", "drop"),
    [
        ("mask-iou", {}, 0.01),
        ("psnr", {}, 60),
        ("psnr", {"labels": "l.txt"}, 0.1),
        ("epe", {"heldout": "h", "labels": "l", "heldout_labels": "m"}, 0.1),
    ],
)
def test_a_built_in_metric_may_fall_by_default(metric, labels, drop):
    criterion = understand("x.npz", {"metric": metric, **labels}).criterion
    assert (criterion.metric_drop, bool(criterion.drop_source)) == (drop, True)
    given = understand("x.npz", {"metric": metric, "metric_drop": 0, **labels}).criterion
    assert (given.metric_drop, given.drop_source) == (0, "")


def test_a_metric_of_the_users_own_needs_its_drop():
    with pytest.raises(UsageError) as error:
        understand("x.npz", {"metric": "f.py:psnr"})
    assert "--metric-drop" in error.value.hint
    assert understand("x.npz", {"metric": "f.py:psnr", "metric_drop": 0}).criterion.metric_drop == 0


@pytest.mark.parametrize("threshold", ["max_abs", "rel_max", "snr_db", "cosine"])
def test_a_metric_stands_alone(threshold):
    with pytest.raises(UsageError, match="metric"):
        understand("x.npz", {"metric": "top1", threshold: 0.5})


def test_options_that_need_another():
    with pytest.raises(UsageError, match="--metric-drop"):
        understand("x.npz", {"metric_drop": 0.1})
    with pytest.raises(UsageError, match="--heldout-labels"):
        understand("x.npz", {"heldout_labels": "l.txt"})


@pytest.mark.parametrize(
    ("labels", "missing"), [("labels", "--heldout-labels"), ("heldout_labels", "--labels")]
)
@pytest.mark.parametrize("metric", [{"metric": "top1"}, {}])
def test_a_metric_needs_labels_of_both_sets_or_of_none(labels, missing, metric):
    both = {"labels": "l.txt", "heldout_labels": "m.txt"}
    options = {"heldout": "y.npz", **metric}
    with pytest.raises(UsageError, match=f" {missing} is missing"):
        understand("x.npz", {**options, labels: "l.txt"})
    understand("x.npz", options)
    understand("x.npz", {**options, **both})
    understand("x.npz", {**metric, "labels": "l.txt"})
    understand("x.npz", {"strict": True, "heldout": "y.npz", labels: "l.txt"})


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({}, Criterion(metric="auto")),
        ({"labels": "l.txt", "to": "bf16"}, Criterion(metric="auto")),
        ({"strict": True}, Criterion(rel_max=0.01)),
        ({"rel_max": 0.02}, Criterion(rel_max=0.02)),
        ({"agreement": 0.5}, Criterion(agreement=0.5)),
        ({"metric": "f.py:f", "metric_drop": 0}, Criterion(metric="f.py:f")),
    ],
)
def test_without_a_wish_outputs_are_judged_by_their_use(options, asked):
    assert understand("x.npz", options).by_use.criterion == asked


@pytest.mark.parametrize(
    "other",
    [
        {"metric": "top1"},
        {"rel_max": 0.02},
        {"agreement": 0.5},
        {"metric": "top1", "metric_drop": 0},
    ],
)
def test_strict_stands_alone(other):
    with pytest.raises(UsageError, match="--strict is a tolerance of its own"):
        understand("x.npz", {"strict": True, **other})


@pytest.mark.parametrize("name", ["keep", "keep_op", "lower", "ort_library"])
def test_one_word_is_no_list_of_letters(name):
    """`fix(…, keep="outputs")` must not keep nodes called o, u, t …"""
    request = understand("x.npz", {name: "outputs"})
    settings = request.settings
    found = {
        "keep": settings.rules.keep,
        "keep_op": settings.rules.keep_op,
        "lower": settings.rules.lower,
        "ort_library": tuple(map(str, settings.runtime.libraries)),
    }
    assert found[name] == ("outputs",)


@bounded
def evaluating(seconds: float, **options: object) -> int:
    assert options.keys() <= {"watcher", "run_timeout"}
    stopped = threading.Event()
    call(lambda: stopped.wait(seconds), stopped.set, "It")
    return 3


def test_an_option_of_the_command_bounds_what_it_evaluates() -> None:
    assert evaluating(0.0) == 3
    assert evaluating(0.0, run_timeout=5, watcher=Silent()) == 3
    with pytest.raises(RunFailed, match=r"longer than 0\.02 s"):
        evaluating(30.0, run_timeout=0.02)
    assert evaluating(0.0) == 3


def test_int8_is_beside_fp16():
    settings = understand("x.npz", {"to": "int8"}).settings
    assert (settings.int8, settings.fmt.name) == (True, "fp16")
    plain = understand("x.npz", {"to": "bf16"}).settings
    assert (plain.int8, plain.fmt.name) == (False, "bf16")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"to": "int8", "io": "bf16"}, "--io bf16"),
        (
            {"to": "int8", "target": "tensorrt", "trt_worker": ["orin", "cloud"]},
            "plans for one worker",
        ),
    ],
)
def test_options_of_int8_stand_where_they_mean_something(options, says):
    with pytest.raises(UsageError, match=says):
        understand("x.npz", options)


@pytest.mark.parametrize("share", ["1%", "0.01", 0.01])
def test_a_share_of_inputs_may_fail(share):
    request = understand("x.npz", {"failing": share}).by_use
    assert request.criterion == Criterion(metric="auto", failing=0.01)
    strict = understand("x.npz", {"failing": share, "strict": True}).by_use
    assert strict.criterion == Criterion(rel_max=0.01, failing=0.01)


@pytest.mark.parametrize("share", ["0", "100%", "1", "-1%", "some", "nan"])
def test_no_input_may_fail_is_no_share(share):
    with pytest.raises(UsageError, match="--failing is"):
        understand("x.npz", {"failing": share})
