import os
import re
import sys

import pytest

from halfwise.errors import UsageError
from halfwise.tensorrt import workers as trust
from halfwise.tensorrt.workers import (
    FILE,
    WorkerDefaults,
    WorkerSpec,
    announce,
    configuration,
    demand_trust,
    memory_bytes,
    remember,
    resolve,
    trust_nearest,
)


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


CONTENT = '[tensorrt]\ncommand = "ssh orin python3"\nbuild_timeout = 60\n'
VARIABLES = {"HALFWISE_TRT_COMMAND": "docker run -i 'an image' python3"}


def test_options_beat_the_environment_which_beats_the_file(asked):
    (spec,) = asked(CONTENT, VARIABLES, trt_command="podman run -i x python3")
    assert (spec.command[0], spec.source) == ("podman", "--trt-command")
    (spec,) = asked(CONTENT, VARIABLES, trt_python="/opt/python3")
    assert (spec.command, spec.source) == (("/opt/python3",), "--trt-python")
    (spec,) = asked(CONTENT, VARIABLES)
    assert spec.command == ("docker", "run", "-i", "an image", "python3")
    assert spec.source == "HALFWISE_TRT_COMMAND"
    (spec,) = asked(CONTENT, {"HALFWISE_TRT_PYTHON": "python3.10", "HALFWISE_TRT_COMMAND": ""})
    assert (spec.command, spec.source) == (("python3.10",), "HALFWISE_TRT_PYTHON")
    (spec,) = asked(CONTENT)
    assert spec.command == ("ssh", "orin", "python3")
    assert spec.source.endswith("halfwise.toml")


def test_settings_of_the_file_hold_whoever_names_the_worker(asked):
    for options in ({}, {"trt_python": "/opt/python3"}):
        assert asked(CONTENT, **options)[0].defaults == WorkerDefaults(build_timeout=60.0)
    assert asked("[tensorrt]\nbuild_timeout = 60\n")[0].command == (sys.executable,)


def test_paths_are_relative_to_what_names_them(asked, tmp_path, monkeypatch):
    (spec,) = asked('[tensorrt]\npython = "venv/bin/python"\n')
    assert spec.command == (str(tmp_path / "venv/bin/python"),)
    monkeypatch.chdir(tmp_path)
    (spec,) = asked(trt_python="other/python")
    assert spec.command == (str(tmp_path / "other/python"),)
    monkeypatch.setenv("HOME", "/home/me")
    assert asked(trt_python="~/python")[0].command == ("/home/me/python",)


SEVERAL = """
[tensorrt]
python = "/opt/trt/bin/python"
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
        ("[tensorrt.workers.o]\npython='x'\ncolour=1", r"\[tensorrt.workers.o\] .* keys: colour"),
        ("tensorrt = 3", "tensorrt in .* is 3; expected a table"),
        ("[tensorflow]", "unknown tables or keys: tensorflow"),
        ("[tensorrt]\nworkers = 3", "workers in .* is 3"),
        ("[tensorrt.workers]\no = 3", "workers in .* is"),
        ("[tensorrt]\npython = 'x'\ncommand = 'y'", "has both python and command"),
        ("[tensorrt]\npython = 3", "python of .* is 3; expected a path"),
        ("[tensorrt]\ncommand = 3", "expected a string, or a list of words"),
        ("[tensorrt]\ncommand = []", "expected a string, or a list of words"),
        ("[tensorrt]\ncommand = ''", "is empty"),
        ("[tensorrt]\ncommand = '\"x'", "cannot be parsed"),
        ("[tensorrt.workers.o]\nworkspace = 3", "needs python or command"),
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
        ({"trt_python": "a", "trt_command": "b"}, {}, "--trt-python and --trt-command each"),
        ({"trt_python": "a", "trt_worker": "b"}, {}, "--trt-python and --trt-worker each"),
        ({}, {"HALFWISE_TRT_PYTHON": "a", "HALFWISE_TRT_COMMAND": "b"}, "HALFWISE_TRT_PYTHON and"),
        ({"trt_command": " "}, {}, "--trt-command is empty"),
        ({"trt_command": "'a"}, {}, "--trt-command cannot be parsed"),
        ({"trt_worker": "orin"}, {}, "--trt-worker orin is not in .*; workers there: none"),
    ],
)
def test_names_that_cannot_be_meant(asked, options, environment, message):
    with pytest.raises(UsageError, match=message):
        asked(None, environment, **options)


def test_a_file_of_another_user_runs_no_command(asked, tmp_path, monkeypatch):
    asked(CONTENT)
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


NAMED = '[tensorrt.workers.a]\ncommand = "ssh orin python3"\n'
PLUGIN = '[tensorrt]\nplugins = ["/tmp/evil.so"]\n'


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The user's configuration folder; the working directory is another one."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "clone").mkdir()
    monkeypatch.chdir(tmp_path / "clone")
    for name in ("HALFWISE_TRT_PYTHON", "HALFWISE_TRT_COMMAND"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config" / "halfwise"


def test_a_file_that_came_along_runs_nothing_until_it_is_trusted(own, tmp_path):
    file = tmp_path / "clone" / FILE
    for text in (NAMED, PLUGIN):
        file.write_text(text)
        with pytest.raises(UsageError, match=f"{re.escape(str(file))} is outside") as refused:
            resolve()
        assert "--trust-config" in refused.value.hint
        trust_nearest()
        assert resolve()
        trust_nearest()
    assert len((own / "trusted.jsonl").read_text().splitlines()) == 2
    file.write_text(NAMED.replace("orin", "evil"))
    with pytest.raises(UsageError, match="would run: ssh evil python3"):
        resolve()
    file.rename(tmp_path / FILE)
    (tmp_path / FILE).write_text(NAMED)  # trusted where it was
    with pytest.raises(UsageError, match="ssh orin python3"):
        resolve()


def test_a_command_that_is_shown_in_part_is_told_so(own, tmp_path):  # noqa: ARG001 - it sets the place
    pad = "A" * 400
    words = f"env {pad} sh -c evil {pad} python3"
    (tmp_path / "clone" / FILE).write_text(f'[tensorrt]\ncommand = "{words}"\n')
    with pytest.raises(UsageError) as refused:
        resolve()
    assert "evil" not in refused.value.message
    assert "read the file" in refused.value.hint


def test_what_it_does_not_run_needs_no_trust(own, tmp_path):  # noqa: ARG001 - it sets the place
    (tmp_path / "clone" / FILE).write_text(NAMED)
    assert resolve(trt_python="python3")[0].command == ("python3",)
    (tmp_path / "clone" / FILE).write_text("[tensorrt]\nbuild_timeout = 5\n")
    assert resolve()[0].defaults.build_timeout == 5


def test_the_users_own_file_is_the_last_that_is_looked_for(own, tmp_path):
    own.mkdir(parents=True)
    (own / FILE).write_text(NAMED)
    assert resolve()[0].name == "a"
    (tmp_path / "clone" / FILE).symlink_to(own / FILE)
    # Its paths would be relative to the clone.
    with pytest.raises(UsageError, match="is outside"):
        resolve()


def test_where_nothing_can_be_remembered(own, tmp_path, monkeypatch):
    (tmp_path / "clone" / FILE).write_text(NAMED)
    own.parent.write_text("a file")
    with pytest.raises(UsageError, match="cannot be remembered in"):
        trust_nearest()
    monkeypatch.setattr(trust, "configuration", lambda: None)
    with pytest.raises(UsageError, match="no home folder"):
        remember(tmp_path / FILE, b"")
    with pytest.raises(UsageError, match="would run"):
        demand_trust(tmp_path / FILE, b"", ["x"])


def test_without_a_file_there_is_nothing_to_trust(own):  # noqa: ARG001 - it sets the place
    with pytest.raises(UsageError, match=r"no halfwise\.toml"):
        trust_nearest()


def test_the_configuration_folder_is_that_of_the_desktop_or_of_no_one(tmp_path, monkeypatch):
    assert configuration({"XDG_CONFIG_HOME": "/x"}) == type(tmp_path)("/x/halfwise")
    monkeypatch.setenv("HOME", str(tmp_path))
    for relative in ({"XDG_CONFIG_HOME": "x"}, {}):
        assert configuration(relative) == tmp_path / ".config" / "halfwise"

    def none():
        raise RuntimeError

    monkeypatch.setattr("pathlib.Path.home", none)
    assert configuration({}) is None


def test_a_command_is_announced_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(trust, "_announced", set())
    for _ in range(2):
        announce(("sh", "-c", "a b\x1b[2J"), tmp_path / FILE)
    shown = capsys.readouterr().err
    assert shown.startswith(f"{tmp_path / FILE} runs: sh -c 'a b")
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 1
