"""Options reach the library by their names there, and only those that were given."""

import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pytest

from halfwise import api
from halfwise.cli import commands, main
from halfwise.cli.options import Display, parameter
from halfwise.declarations import spelt
from halfwise.declarations.option import Option, option
from halfwise.tensorrt.versions import DEFAULT_BUILDER
from tests.unit.reporting.runs import run

GIVEN = {
    "heldout": "h.npz",
    "preprocess": "p.py:f",
    "labels": "l.json",
    "heldout_labels": "hl.json",
    "max_abs": 0.0,
    "rel_max": 0.5,
    "snr_db": -3.0,
    "cosine": 0.9,
    "agreement": 0.95,
    "metric": "top1",
    "metric_drop": 0.0,
    "start_from": "mixed.onnx",
    "to": "fp16",
    "io": "fp16",
    "accumulate": "fp16",
    "headroom": 3.0,
    "margin": 0.5,
    "budget": 7.0,
    "time_budget": 0.0,
    "device": "cuda",
    "target": "tensorrt",
    "trt_command": "ssh orin python3",
    "trt_worker": "orin",
    "builds": 1,
    "max_builds": 9,
    "typing": "weak",
    "workspace": "4G",
    "optimization_level": 0,
    "tactic_sources": "CUBLAS,CUDNN",
    "build_timeout": 60.0,
    "run_timeout": 5.0,
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


def options_of(command):
    return set(inspect.signature(command).parameters)


def test_every_option_of_the_library_is_one_of_fix():
    own = {"model", "inputs", "out", *Display._fields, "help_all", "options"}
    singly = {n for n, hint in api.Options.__annotations__.items() if option(hint).group is None}
    groups = {option(hint).group for hint in api.Options.__annotations__.values()} - {None}
    taken = options_of(commands.fix) - own
    assert taken == singly | {str(group).removeprefix("--") for group in groups}


def listed(call, *line):
    """Return the options that a help lists."""
    return set(re.findall(r"(?<!\S)--[a-z][\w-]*", call(*line)[1])) - {"--gpus"}


def test_the_help_is_short_and_says_where_the_rest_is(call):
    short, whole = listed(call, "fix", "--help"), listed(call, "fix", "--help-all")
    assert "--help-all" in short <= whole
    assert len(short - {"--help", "--help-all"}) <= 11
    assert len(whole) <= 40
    assert "--help-all" not in listed(call, "doctor", "--help")


@pytest.mark.parametrize("command", ["ladder", "verify", "diagnose", "choose", "compare", "build"])
def test_every_help_is_short(call, command):
    assert len(listed(call, command, "--help") - {"--help", "--help-all"}) <= 14


@pytest.mark.parametrize(
    ("option", "command", "taken"),
    [
        ("--require max-abs", commands.fix, True),
        ("--require max-abs", commands.verify, True),
        ("--require max-abs", commands.build, False),
        ("--budget run-timeout", commands.inspect, True),
        ("--budget builds", commands.observe, False),
        ("--budget builds", commands.compare, False),
        ("--engine repeat", commands.compare, False),
    ],
)
def test_who_takes_what(option, command, taken):
    group, name = option.removeprefix("--").split()
    hint = inspect.signature(command, eval_str=True).parameters.get(group)
    told = "" if hint is None else hint.annotation.__metadata__[0].help
    assert (f"{name}=" in told) is taken


@pytest.mark.parametrize(
    ("hint", "kind", "flags"),
    [
        (Annotated[float, Option("A.", "X", 2.0, panel="P")], float, ()),
        (Annotated[bool, Option("B.")], bool, ("--a-b",)),
        (Annotated[Sequence[Path | str], Option("C.", flag="--aB")], list[Path], ("--aB",)),
    ],
)
def test_a_parameter_is_made_of_what_is_declared(hint, kind, flags):
    made = parameter("a_b", hint)
    shown = made.annotation.__metadata__[0]
    assert (made.annotation.__origin__, made.default) == (kind | None, None)
    declared = hint.__metadata__[0]
    assert (shown.help, shown.metavar) == (declared.help, declared.metavar)
    assert shown.rich_help_panel == declared.panel
    assert tuple(shown.param_decls or ()) == flags or shown.default in flags


def test_what_is_not_given_is_not_passed_on(given):
    assert given() == {}


def test_everything_that_is_given_is_passed_on_zeros_too(given):
    words = [w for k, v in GIVEN.items() for w in spelt(k, str(v)).split(maxsplit=1)]
    assert given(*words) == GIVEN | {"trt_worker": ["orin"], "target": ["tensorrt"]}


def test_flags_and_repeated_options(given):
    passed = given(
        "--allow", "random,bf16", "--allow", "tf32", "--keep", "a",
        "--keep", "outputs", "--keep-op", "Softmax",
        "--lower", "b", "--ort-library", "x.so", "--engine", "tf32",
        "--engine", "plugin=p.so",
        "--engine", "minShapes=x:1x3", "--engine", "optShapes=x:2x3", "--engine", "maxShapes=x:4x3",
        "--engine", "minShapes=x:4x3",
    )  # fmt: skip
    assert [str(p) for p in passed.pop("ort_library")] == ["x.so"]
    assert passed == {
        "allow_random": True,
        "allow_bf16": True,
        "allow_tf32": True,
        "tf32": True,
        "plugin": ["p.so"],
        "min_shapes": ["x:1x3", "x:4x3"],
        "opt_shapes": ["x:2x3"],
        "max_shapes": ["x:4x3"],
        "keep": ["a", "outputs"],
        "keep_op": ["Softmax"],
        "lower": ["b"],
    }


@pytest.mark.parametrize("option", ["build-timeout", "run-timeout"])
def test_time_outs_that_are_none_are_refused(call, option):
    line = (
        "verify",
        "a.onnx",
        "b.onnx",
        "--target",
        "tensorrt",
        "--inputs",
        "x.npz",
        "--budget",
        f"{option}=0",
    )
    code, _, err = call(*line)
    assert (code, f"--budget {option} is 0;" in err) == (2, True)


def help_of(command, name):
    hint = inspect.signature(command, eval_str=True).parameters[name].annotation
    return hint.__metadata__[0].help


def test_defaults_that_commands_tell_themselves_are_those_of_the_library():
    assert help_of(commands.export, "trt_version").endswith(f"else {DEFAULT_BUILDER}.")


def test_an_empty_word_is_that_of_the_argument_behind_a_flag(call):
    for words, named in (
        (("fix", "--json", "", "--inputs", "x.npz"), "An argument"),
        (("fix", "m.onnx", "--json", "--inputs", ""), "--inputs"),
        (("fix", "m.onnx", "-o", ""), "-o"),
    ):
        code, _, err = call(*words)
        assert (code, f"error: {named} is empty;" in err) == (2, True)
