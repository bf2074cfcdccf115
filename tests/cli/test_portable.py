"""The core where the system is not POSIX: fix, verify and report on a simulated one."""

import json
import subprocess
import sys
from pathlib import Path

ELSEWHERE = """
import os, pathlib, select, signal, sys

# Windows has none of these. subprocess and others of the standard library come first: there they
# would take another path.
import subprocess, tempfile, shutil, uuid, ctypes, platform
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"):
    sys.modules[name] = None
for name in (
    "fork", "killpg", "setsid", "getuid", "geteuid", "getpgid", "sched_getaffinity", "waitid",
    "waitid_result", "posix_fallocate", "O_NOFOLLOW", "O_DIRECTORY", "WEXITED", "pread", "mkfifo",
):
    delattr(os, name)
for name in ("pthread_sigmask", "pthread_kill", "SIGHUP", "SIGKILL", "SIG_BLOCK", "SIG_UNBLOCK"):
    delattr(signal, name)
for name in ("poll", "epoll"):
    delattr(select, name)
FOLDERS = ("/proc/", "/sys/", "/dev/")
opened = open

def without(path, *rest, **named):
    if str(path).startswith(FOLDERS) and str(path) != os.devnull:
        raise FileNotFoundError(2, "No such file or directory", str(path))
    return opened(path, *rest, **named)

import builtins, io
builtins.open = io.open = without

from halfwise.__main__ import run
run()
"""


DIGITS = Path(__file__).parents[2] / "examples" / "digits"


def test_nothing_in_the_core_needs_posix(tmp_path: Path) -> None:
    script = tmp_path / "elsewhere.py"
    script.write_text(ELSEWHERE, encoding="utf-8")
    model, data = str(DIGITS / "model.onnx"), ("--inputs", str(DIGITS / "heldout.npz"))
    for words in (
        ("fix", model, *data, "-o", "run"),
        ("verify", model, "run/model.onnx", *data),
        ("report", "run"),
        ("lint", model),
    ):
        done = subprocess.run(
            [sys.executable, script, *words, "--json"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    run = json.loads((tmp_path / "run" / "run.json").read_bytes())
    assert run["verdict"]["passed"]
    assert run["cost"]["peak_rss_bytes"] is None
    assert not list(tmp_path.glob(".halfwise*"))
