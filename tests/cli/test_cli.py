"""The command line up to where it calls the library, and from its results on."""

import errno
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
import typer
from typer.core import TyperGroup

from halfwise.cli import app, main
from halfwise.errors import HalfwiseError
from tools import readme

COMMANDS = ("fix", "verify", "observe", "explain-log", "report", "export", "doctor")
FIX = ("fix", "m.onnx", "--inputs", "x.npz", "-o", "r")


def all_errors():
    pending, found = [HalfwiseError], []
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        found.append(kind)
    return [kind for kind in found if kind is not HalfwiseError]


@pytest.mark.parametrize("command", COMMANDS)
def test_help(call, command):
    code, out, _ = call(command, "--help")
    assert code == 0
    assert "Usage: halfwise" in out


def test_help_lists_the_commands_and_exit_codes(call):
    code, out, _ = call("--help")
    assert code == 0
    assert all(command in out for command in COMMANDS)
    assert "10 failed, or something found" in " ".join(out.split())


def test_version(call):
    code, out, _ = call("--version")
    assert code == 0
    assert out.startswith("halfwise 0.")


@pytest.mark.parametrize(
    "arguments",
    [
        ("fox",),
        ("fix",),
        ("fix", "m.onnx"),
        ("fix", "m.onnx", "--inputs", "x.npz"),
        ("fix", "m.onnx", "-o", "r"),
        (*FIX, "--no-such-option"),
        (*FIX, "--rel-max", "small"),
        (*FIX, "--io", "fp8"),
        (*FIX, "--device", "tpu"),
        ("verify", "m.onnx", "c.onnx"),
        ("observe", "m.onnx"),
        ("observe", "m.onnx", "--inputs", "x.npz", "--limit", "-1"),
        ("report",),
        ("doctor", "me"),
    ],
)
def test_usage_errors(call, arguments):
    code, out, err = call(*arguments)
    assert code == 2
    assert out == ""
    assert "Usage" in err or "; expected " in err


@pytest.mark.parametrize(
    ("shell", "typed"),
    [
        ("bash", {"COMP_WORDS": "halfwise migr", "COMP_CWORD": "1"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "halfwise migr"}),
        (
            "fish",
            {"_TYPER_COMPLETE_ARGS": "halfwise migr", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        ),
    ],
)
def test_shells_complete_commands(shell, typed):
    asked = {**os.environ, "_HALFWISE_COMPLETE": f"complete_{shell}", **typed}
    command = Path(sys.executable).with_name("halfwise")
    done = subprocess.run([command], env=asked, capture_output=True, text=True, check=False)
    assert "migrate" in done.stdout
    assert "fix" not in done.stdout


def test_no_command_says_where_to_start(call):
    code, out, err = call()
    assert (code, out) == (2, "")
    assert err.startswith("Start here: halfwise fix MODEL --inputs DATA -o RUN\n")


@pytest.mark.parametrize(
    ("name", "command"), [*readme.leaves(cast(TyperGroup, typer.main.get_command(app)))]
)
def test_every_help_ends_with_an_example_that_the_command_takes(call, name, command):
    _, out, _ = call(*name.split(), "--help")
    example = " ".join(out.split()).partition("Example: halfwise ")[2]
    assert example.startswith(name)
    words = shlex.split(example)[len(name.split()) :]
    made = command.make_context(name, words)
    assert all(made.params[p.name] for p in command.params if p.required)


@pytest.mark.parametrize(
    ("words", "suggested"),
    [(("fi",), "fix"), (("fix", "--metr"), "--metric"), (("lint", "--ignor"), "--ignore")],
)
def test_what_is_mistyped_is_suggested(call, words, suggested):
    code, _, err = call(*words)
    assert code == 2
    assert re.search(rf"(mean|options?:).*{suggested}\b", err)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_and_values(monkeypatch, call, shell):
    monkeypatch.setenv("_HALFWISE_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    for typed, completed in (("diag", "diagnose"), ("fix --to bf", "bf16")):
        line = f"halfwise {typed}"
        for name, value in (
            ("COMP_WORDS", line),
            ("COMP_CWORD", str(line.count(" "))),
            ("_TYPER_COMPLETE_ARGS", line),
        ):
            monkeypatch.setenv(name, value)
        code, out, _ = call()
        assert code == 0
        assert completed in out


@pytest.mark.parametrize("kind", all_errors())
@pytest.mark.parametrize("command", COMMANDS)
def test_errors_become_messages_and_exit_codes(call, answer, kind, command):
    answer(
        command.replace("-", "_"),
        kind("The [red]model\x1b[2J is odd.\nSecond line.", "Give another."),
    )
    arguments = {
        "fix": FIX,
        "verify": ("verify", "m.onnx", "c.onnx", "--inputs", "x.npz"),
        "observe": ("observe", "m.onnx", "--inputs", "x.npz"),
        "explain-log": ("explain-log", "a.log"),
        "report": ("report", "r"),
        "export": ("export", "r", "--as", "python"),
        "doctor": ("doctor",),
    }
    code, out, err = call(*arguments[command])
    assert code == kind.exit_code
    assert out == ""
    assert err.strip().splitlines() == [
        "error: The [red]model�[2J is odd.",
        "  Second line.",
        "hint: Give another.",
    ]


def test_an_error_without_a_hint(call, answer):
    answer("report", next(k for k in all_errors() if k.exit_code == 6)("It failed."))
    assert call("report", "r") == (6, "", "error: It failed.\n")


def test_ctrl_c(call, answer):
    answer("fix", KeyboardInterrupt())
    code, out, err = call(*FIX)
    assert (code, out) == (130, "")
    assert err.strip() == "interrupted before there was a result; nothing was written"


def test_no_room_is_one_sentence(call, answer):
    answer("fix", OSError(errno.ENOSPC, "No space left on device", "run/model.onnx"))
    code, _, err = call(*FIX)
    assert code == 2
    assert err.startswith("error: There is no space left for run/model.onnx.\nhint: Free some")
    answer("fix", OSError(errno.EBADF, "Bad file descriptor"))
    with pytest.raises(OSError, match="Bad file"):
        main()


def test_what_nobody_expected_is_a_traceback(monkeypatch, answer):
    answer("fix", ZeroDivisionError())
    monkeypatch.setattr(sys, "argv", ["halfwise", *FIX])
    with pytest.raises(ZeroDivisionError):
        main()


def test_doctor(call, answer):
    answer("doctor", {"python": "3.12.0", "device cuda": "not available"})
    code, out, _ = call("doctor")
    assert code == 0
    assert out.splitlines()[1].split() == ["device", "cuda", "not", "available"]
