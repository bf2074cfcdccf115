"""Options reach the library by their names there, and only those that were given."""

import re
import sys
from dataclasses import fields
from typing import get_type_hints

import pytest

from halfwise import api
from halfwise.case import EngineSettings, Runtime, Settings
from halfwise.cli import main, options
from halfwise.cli.required import Required
from halfwise.cli.waiting import Waiting
from halfwise.metrics import DEFAULT_REL_MAX, default_drop
from halfwise.options.options import Data as LoadOptions
from halfwise.records import Criterion
from tests.unit.reporting.runs import run

GROUPS = (
    options.Data,
    options.Labels,
    options.Heldout,
    options.Acceptance,
    options.Low,
    options.Plan,
    options.Arithmetic,
    Required,
    options.Running,
    options.Target,
    options.Worker,
    options.Building,
    options.BuildLimit,
    Waiting,
)
HINTS = {
    name: hint
    for group in GROUPS
    for name, hint in get_type_hints(group, include_extras=True).items()
    if name != "trust_config"  # it acts on the command line alone
}
KINDS = (Settings, LoadOptions, EngineSettings, Runtime)
GIVEN = {
    "--heldout": "h.npz",
    "--preprocess": "p.py:f",
    "--labels": "l.json",
    "--heldout-labels": "hl.json",
    "--max-abs": 0.0,
    "--rel-max": 0.5,
    "--snr-db": -3.0,
    "--cosine": 0.9,
    "--agreement": 0.95,
    "--metric": "top1",
    "--metric-drop": 0.0,
    "--require-worth": 1.5,
    "--start-from": "mixed.onnx",
    "--keep-above": 1e4,
    "--to": "fp16",
    "--io": "fp16",
    "--accumulate": "fp16",
    "--headroom": 3.0,
    "--margin": 0.5,
    "--time-budget": 0.0,
    "--device": "cuda",
    "--seed": 0,
    "--target": "tensorrt",
    "--trt-python": "python3",
    "--trt-command": "ssh orin python3",
    "--trt-worker": "orin",
    "--builds": 1,
    "--max-builds": 9,
    "--prefer": "memory",
    "--typing": "weak",
    "--workspace": "4G",
    "--optimization-level": 0,
    "--tactic-sources": "CUBLAS,CUDNN",
    "--build-timeout": 60.0,
    "--run-timeout": 5.0,
    "--wait-timeout": 9.0,
}


@pytest.fixture
def given(monkeypatch):
    """Call `fix` with arguments; return the options that the library gets."""

    def given(*arguments):
        calls = []

        def stand_in(*_, **passed):
            calls.append(passed)
            return api.Result(run(), None, None)

        monkeypatch.setattr(api, "fix", stand_in)
        line = ["halfwise", "fix", "m.onnx", "--inputs", "x.npz", "-o", "r", *arguments]
        monkeypatch.setattr(sys, "argv", line)
        with pytest.raises(SystemExit):
            main()
        return {k: v for k, v in calls[0].items() if k not in ("out", "watcher")}

    return given


def test_every_option_of_the_library_is_one_of_the_command_line():
    assert set(HINTS) == set(api.Options.__annotations__)


def test_what_is_not_given_is_not_passed_on(given):
    assert given() == {}


def test_everything_that_is_given_is_passed_on_zeros_too(given):
    words = [str(word) for pair in GIVEN.items() for word in pair]
    expected = {k.removeprefix("--").replace("-", "_"): v for k, v in GIVEN.items()}
    assert given(*words) == expected


def test_flags_and_repeated_options(given):
    passed = given(
        "--allow-random", "--keep", "a", "--keep", "outputs", "--keep-op", "Softmax",
        "--lower", "b", "--ort-library", "x.so", "--tf32", "--resume", "--plugin", "p.so",
        "--minShapes", "x:1x3", "--optShapes", "x:2x3", "--maxShapes", "x:4x3",
        "--minShapes", "x:4x3", "--timing-cache", "t.cache",
    )  # fmt: skip
    assert [str(p) for p in passed.pop("ort_library")] == ["x.so"]
    assert str(passed.pop("timing_cache")) == "t.cache"
    assert passed == {
        "allow_random": True,
        "tf32": True,
        "resume": True,
        "plugin": ["p.so"],
        "min_shapes": ["x:1x3", "x:4x3"],
        "opt_shapes": ["x:2x3"],
        "max_shapes": ["x:4x3"],
        "keep": ["a", "outputs"],
        "keep_op": ["Softmax"],
        "lower": ["b"],
    }


def test_stated_defaults_are_those_of_the_library():
    drop = default_drop("mask-iou", labelled=False)
    assert drop is not None
    defaults = {f.name: f.default for kind in KINDS for f in fields(kind)} | {
        "to": Settings().fmt.name,
        "rel_max": DEFAULT_REL_MAX,
        "metric_drop": drop.drop,
        "agreement": Criterion().agreement,
    }
    stated = {}
    for name, hint in HINTS.items():
        found = re.search(r"Default (\w[\w.]*\w|\w)", hint.__metadata__[0].help)
        if found:
            stated[name] = found[1]
    assert stated.keys() >= {"to", "io", "margin", "headroom", "time_budget", "rel_max", "seed"}
    assert stated.keys() >= {"builds", "max_builds", "build_timeout", "run_timeout"}
    for name, text in stated.items():
        default = defaults[name]
        assert text == default if isinstance(default, str) else float(text) == default
