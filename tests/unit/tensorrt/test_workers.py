import os
import sys
from pathlib import Path

import pytest

from halfwise.errors import UsageError
from halfwise.tensorrt.workers import (
    WorkerSpec,
    configuration,
    memory_bytes,
    resolve,
)


@pytest.fixture
def asked(tmp_path):
    """Resolve with a `halfwise.toml` of this text."""

    def asked(text=None, environment=None, **options):
        known = {"XDG_CONFIG_HOME": str(tmp_path), **(environment or {})}
        if text is not None:
            configuration(known).parent.mkdir(exist_ok=True)
            configuration(known).write_text(text)
        return resolve(environment=known, **options)

    return asked


def test_by_default_it_is_this_interpreter(asked):
    assert asked() == [WorkerSpec("tensorrt", (sys.executable,), "default")]


FILE = '[workers]\norin = "ssh orin python3"\n'
VARIABLES = {"HALFWISE_TRT_COMMAND": "docker run -i 'an image' python3"}


def test_options_beat_the_environment_which_beats_the_file(asked):
    (spec,) = asked(FILE, VARIABLES, trt_command="podman run -i x python3")
    assert (spec.command[0], spec.source) == ("podman", "--trt-command")
    (spec,) = asked(FILE, VARIABLES)
    assert spec.command == ("docker", "run", "-i", "an image", "python3")
    assert spec.source == "HALFWISE_TRT_COMMAND"
    (spec,) = asked(FILE, {"HALFWISE_TRT_COMMAND": ""})
    assert spec.command == ("ssh", "orin", "python3")
    assert spec.source.endswith("halfwise.toml")


def test_paths_are_relative_to_what_names_them(asked, tmp_path, monkeypatch):
    (spec,) = asked('[workers]\nhere = "venv/bin/python"\n')
    assert spec.command == (str(tmp_path / "halfwise/venv/bin/python"),)
    monkeypatch.chdir(tmp_path)
    (spec,) = asked(trt_command="other/python")
    assert spec.command == (str(tmp_path / "other/python"),)
    monkeypatch.setenv("HOME", "/home/me")
    assert asked(trt_command="~/python")[0].command == ("/home/me/python",)


SEVERAL = """
[workers]
own = "/opt/trt/bin/python"
orin = "ssh orin 'python 3'"
cloud = "ssh cloud docker run -i trt python3"
"""


def test_several_workers(asked):
    own, orin, cloud = asked(SEVERAL)
    assert [spec.name for spec in (own, orin, cloud)] == ["own", "orin", "cloud"]
    assert orin.command == ("ssh", "orin", "python 3")
    assert asked(SEVERAL, VARIABLES, trt_worker="cloud") == [cloud]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[workers", "cannot be read"),
        ("workers = 3", r"halfwise.toml cannot be used: Expected .* got `int` - at `..workers`"),
        ("[tensorflow]", "unknown field `tensorflow`"),
        ("[workers]\no = 3", "Worker o in .* is '3'; expected a string"),
        ("[workers]\no = ['ssh', 'o']", "Worker o in .* expected a string"),
        ("[workers.o]\ncommand = 'x'", "Worker o in .* expected a string"),
        ("[workers]\no = ''", "Worker o in .* is empty"),
        ("[workers]\no = ' '", "Worker o in .* is empty"),
        ("[workers]\no = '\"x'", "cannot be parsed"),
        ('[workers]\no = "python3\\u0000"', "Worker o in .* contains NUL"),
    ],
)
def test_a_file_that_cannot_be_meant(asked, text, message):
    with pytest.raises(UsageError, match=message) as error:
        asked(text)
    assert error.value.hint


def test_a_file_that_is_a_pipe_is_not_waited_for(asked, tmp_path):
    path = configuration({"XDG_CONFIG_HOME": str(tmp_path)})
    path.parent.mkdir()
    os.mkfifo(path)
    with pytest.raises(UsageError, match="named pipe"):
        asked()


@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        ({"trt_command": "a", "trt_worker": "b"}, {}, "--trt-command and --trt-worker each"),
        ({"trt_command": " "}, {}, "--trt-command is empty"),
        ({"trt_command": "'a"}, {}, "--trt-command cannot be parsed"),
        ({"trt_worker": "orin"}, {}, "--trt-worker orin is not in .*; workers there: none"),
    ],
)
def test_names_that_cannot_be_meant(asked, options, environment, message):
    with pytest.raises(UsageError, match=message):
        asked(None, environment, **options)


def test_only_the_users_own_file_counts(tmp_path, monkeypatch):
    clone = tmp_path / "clone"
    (clone / ".config" / "halfwise").mkdir(parents=True)
    monkeypatch.chdir(clone)
    for folder in (clone, clone / ".config" / "halfwise", clone / "halfwise"):
        folder.mkdir(exist_ok=True)
        (folder / "halfwise.toml").write_text(FILE)
    homes: tuple[dict[str, str], ...] = (
        {},
        {"XDG_CONFIG_HOME": ""},
        {"HOME": ""},
        {"XDG_CONFIG_HOME": "."},
        {"HOME": "."},
    )
    for environment in homes:
        assert configuration(environment).is_absolute()
        assert resolve(environment=environment)[0].source == "default"
    assert configuration({"HOME": "/home/me"}) == Path("/home/me/.config/halfwise/halfwise.toml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [(1, 1 << 20), ("512", 512 << 20), ("512M", 512 << 20), ("1.5G", 3 << 29), ("7 B", 7)],
)
def test_sizes_are_those_of_trtexec(text, expected):
    assert memory_bytes(text, "--workspace") == expected


@pytest.mark.parametrize("text", ["", "-1", "4GB", "0", "1e3", True, "9" * 20, "9" * 999, "0.1B"])
def test_sizes_that_are_none(text):
    with pytest.raises(UsageError, match="--workspace is"):
        memory_bytes(text, "--workspace")
