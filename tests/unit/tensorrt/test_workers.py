import os
import sys

import pytest

from halfwise.errors import UsageError
from halfwise.tensorrt.workers import WorkerDefaults, WorkerSpec, memory_bytes, remember, resolve


@pytest.fixture
def asked(tmp_path):
    """Resolve with a `halfwise.toml` of this text, from a folder below it."""

    def asked(text=None, environment=None, **options):
        if text is not None:
            (tmp_path / "halfwise.toml").write_text(text)
            remember(tmp_path / "halfwise.toml", text.encode())
        below = tmp_path / "a" / "b"
        below.mkdir(parents=True, exist_ok=True)
        return resolve(folder=below, environment=environment or {}, **options)

    return asked


def test_by_default_it_is_this_interpreter(asked):
    assert asked() == [WorkerSpec("tensorrt", (sys.executable,), "default")]


FILE = '[tensorrt]\ncommand = "ssh orin python3"\nbuild_timeout = 60\n'
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


def test_settings_of_the_file_hold_whoever_names_the_worker(asked):
    for options in ({}, {"trt_command": "/opt/python3"}):
        assert asked(FILE, **options)[0].defaults == WorkerDefaults(build_timeout=60.0)
    assert asked("[tensorrt]\nbuild_timeout = 60\n")[0].command == (sys.executable,)


def test_paths_are_relative_to_what_names_them(asked, tmp_path, monkeypatch):
    (spec,) = asked('[tensorrt]\ncommand = "venv/bin/python"\n')
    assert spec.command == (str(tmp_path / "venv/bin/python"),)
    monkeypatch.chdir(tmp_path)
    (spec,) = asked(trt_command="other/python")
    assert spec.command == (str(tmp_path / "other/python"),)
    monkeypatch.setenv("HOME", "/home/me")
    assert asked(trt_command="~/python")[0].command == ("/home/me/python",)


SEVERAL = """
[tensorrt]
command = "/opt/trt/bin/python"
workspace = "4G"
tactic_sources = ["CUBLAS", "CUDNN"]
run_timeout = 5

[tensorrt.workers.orin]
command = ["ssh", "orin", "python 3"]
workspace = 512
optimization_level = 3
plugins = ["/usr/lib/p.so"]

[tensorrt.workers.cloud]
command = "ssh cloud docker run -i trt python3"
"""


def test_several_workers(asked):
    own, orin, cloud = asked(SEVERAL)
    assert [spec.name for spec in (own, orin, cloud)] == ["tensorrt", "orin", "cloud"]
    assert own.defaults == WorkerDefaults(
        workspace_bytes=4 << 30, tactic_sources=("CUBLAS", "CUDNN"), run_timeout=5.0
    )
    assert orin.command == ("ssh", "orin", "python 3")
    assert orin.defaults == WorkerDefaults(
        workspace_bytes=512 << 20,
        tactic_sources=("CUBLAS", "CUDNN"),
        run_timeout=5.0,
        optimization_level=3,
        plugins=("/usr/lib/p.so",),
    )
    assert cloud.defaults == own.defaults
    assert asked(SEVERAL, VARIABLES, trt_worker="cloud") == [cloud]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tensorrt", "cannot be read"),
        ("[tensorrt]\npyhton = 'x'", r"\[tensorrt\] in .*halfwise.toml has unknown keys: pyhton"),
        ("[tensorrt.workers.o]\ncommand='x'\ncolour=1", r"\[tensorrt.workers.o\] .* keys: colour"),
        ("tensorrt = 3", "tensorrt in .* is 3; expected a table"),
        ("[tensorflow]", "unknown tables or keys: tensorflow"),
        ("[tensorrt]\nworkers = 3", "workers in .* is 3"),
        ("[tensorrt.workers]\no = 3", "workers in .* is"),
        ("[tensorrt]\ncommand = 3", "expected a string, or a list of words"),
        ("[tensorrt]\ncommand = []", "expected a string, or a list of words"),
        ("[tensorrt]\ncommand = ''", "is empty"),
        ("[tensorrt]\ncommand = '\"x'", "cannot be parsed"),
        ("[tensorrt.workers.o]\nworkspace = 3", "needs a command"),
        ("[tensorrt]\nworkspace = 'large'", "workspace of .* is 'large'; expected a size"),
        ("[tensorrt]\nworkspace = 0", "expected a size"),
        ("[tensorrt]\noptimization_level = 6", "expected a number from 0 to 5"),
        ("[tensorrt]\noptimization_level = true", "expected a number from 0 to 5"),
        ("[tensorrt]\ntactic_sources = 'CUBLAS'", "expected a list"),
        ("[tensorrt]\nplugins = [3]", "expected a list of paths"),
        ("[tensorrt]\nbuild_timeout = 0", "expected seconds above 0"),
        ("[tensorrt]\nrun_timeout = nan", "expected seconds above 0"),
    ],
)
def test_a_file_that_cannot_be_meant(asked, text, message):
    with pytest.raises(UsageError, match=message) as error:
        asked(text)
    assert error.value.hint


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


def test_a_file_of_another_user_runs_no_command(asked, tmp_path, monkeypatch):
    asked(FILE)
    if os.getuid() == 0:
        os.chown(tmp_path / "halfwise.toml", 12345, 12345)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(UsageError, match="belongs to another user"):
        asked()


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
