import re

import pytest

from halfwise.errors import UsageError
from halfwise.tensorrt import workers as trust
from halfwise.tensorrt.workers import (
    FILE,
    announce,
    configuration,
    demand_trust,
    remember,
    resolve,
    trust_nearest,
)

NAMED = '[tensorrt.workers.a]\ncommand = "ssh orin python3"\n'
PLUGIN = '[tensorrt]\nplugins = ["/tmp/evil.so"]\n'


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The user's configuration folder; the working directory is another one."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "clone").mkdir()
    monkeypatch.chdir(tmp_path / "clone")
    for name in ("HALFWISE_TRT_COMMAND",):
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
    assert resolve(trt_command="python3")[0].command == ("python3",)
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
