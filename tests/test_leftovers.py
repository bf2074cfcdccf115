"""Tests end, and tell of what they leave: a run of pytest with this configuration, inside one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
_QUICK = "from tests import leftovers\nleftovers.PATIENCE = 0.5\n"


pytestmark = pytest.mark.slow


@pytest.fixture
def ran(tmp_path):
    """Run tests, given as text, with limits in seconds; return the exit code and what is said."""

    def ran(text, limit=300.0, hard=300.0):
        (tmp_path / "test_inner.py").write_text(_QUICK + text)
        limits = ("-o", f"timeout={limit}", "-o", f"faulthandler_timeout={hard}")
        where = ("-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-p", "tests.conftest")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *where, *limits, tmp_path / "test_inner.py"],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return ran


def test_what_is_left_is_named_and_ended_though_its_parent_is_gone(ran):
    # Its pipes would keep this test waiting for it.
    code, said = ran(
        "import subprocess, tempfile\n"
        "def test_one(tmp_path): (tmp_path / 'x').touch()\n"
        "def test_two(): tempfile.mkdtemp(prefix='forgotten-')\n"
        "def test_three(): subprocess.run(['sh', '-c', 'sleep 4321 >/dev/null 2>&1 &'])\n"
    )
    assert code == 1
    assert "The test has left temporary files: ['forgotten-" in said
    assert "Tests have left processes: ['sleep 4321" in said
    assert "3 passed, 2 errors" in said


def test_a_test_that_hangs_fails_and_its_fixtures_are_torn_down(ran, tmp_path):
    code, said = ran(
        "import pytest, threading\nfrom pathlib import Path\n"
        "@pytest.fixture\n"
        f"def it(): yield; Path({str(tmp_path)!r}, 'torn').touch()\n"
        "def test_it(it): threading.Event().wait()\n",
        limit=1.0,
    )
    assert code == 1
    assert "Timeout (>1.0s)" in said
    assert (tmp_path / "torn").exists()


def test_a_teardown_that_hangs_after_a_failure_ends_too(ran):
    code, said = ran(
        "import pytest, threading\n"
        "@pytest.fixture\n"
        "def it(): yield; threading.Event().wait()\n"
        "def test_it(it): assert False\n",
        hard=1.0,
    )
    assert code == 1
    assert "Timeout (0:00:01)!" in said
