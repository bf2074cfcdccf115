import os
import subprocess
import sys

import pytest

from halfwise import scratch as module
from halfwise.scratch import scratch

KILLED = """
import os, signal, sys
from pathlib import Path
from halfwise.scratch import scratch
with scratch(Path(sys.argv[1])) as folder:
    (folder / "engine").write_bytes(b"big")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def later_run(place):
    """Make a scratch folder as the first of a run; return what lay beside it."""
    module._looked_at.clear()
    with scratch(place) as folder:
        return {entry.name for entry in place.iterdir()} - {folder.parent.name}


def test_a_folder_goes_with_its_block(tmp_path):
    with scratch(tmp_path) as folder:
        assert list(folder.iterdir()) == []
        (folder / "file").touch()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    assert later_run(tmp_path) == set()


def test_what_is_alive_or_no_scratch_folder_is_left_alone(tmp_path):
    with scratch(tmp_path) as alive:
        (tmp_path / "halfwise.mine").mkdir()
        (tmp_path / "halfwise.txt").touch()
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "lock").touch()
        (tmp_path / "halfwise.link").symlink_to(tmp_path / "other")
        (tmp_path / "halfwise.trap").mkdir()
        (tmp_path / "halfwise.trap" / "lock").symlink_to(tmp_path / "other" / "lock")
        left = later_run(tmp_path)
    own = {"halfwise.mine", "halfwise.txt", "other", "halfwise.link", "halfwise.trap"}
    assert left == own | {alive.parent.name}
    assert (tmp_path / "other" / "lock").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_another_users_folder_is_left_alone(tmp_path):
    folder = tmp_path / "halfwise.other"
    folder.mkdir()
    (folder / "lock").touch()
    os.utime(folder / "lock", (0, 0))
    os.chown(folder, 12345, 12345)
    assert later_run(tmp_path) == {"halfwise.other"}
    os.chown(folder, 0, 0)
    assert later_run(tmp_path) == set()


def test_what_another_machine_began_lately_may_be_alive(tmp_path):
    # Its lock may not be seen here.
    (tmp_path / "halfwise.far").mkdir()
    (tmp_path / "halfwise.far" / "lock").write_text("ab12")
    assert later_run(tmp_path) == {"halfwise.far"}
    os.utime(tmp_path / "halfwise.far" / "lock", (0, 0))
    assert later_run(tmp_path) == set()


def test_without_locks_nothing_is_taken_for_abandoned(tmp_path, monkeypatch):
    def none(*_):
        raise OSError

    monkeypatch.setattr("fcntl.flock", none)
    with scratch(tmp_path) as folder:
        monkeypatch.undo()
        assert later_run(tmp_path) == {folder.parent.name}
    assert list(tmp_path.iterdir()) == []
