"""The core where the system is not POSIX: fix, verify and report on a simulated one."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import mypy
import numpy as np
import onnx
import pytest

from tests import models

ROOT = Path(__file__).parents[2]
STUBS = Path(mypy.__file__).parent / "typeshed" / "stdlib"
ELSEWHERE = """
import importlib, json, os, sys

# What others of the standard library take from these comes first: there they would go another way.
import subprocess, tempfile, shutil, uuid, ctypes, platform, mmap, select, signal, socket, time
shutil._use_fd_functions = False
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"):
    sys.modules[name] = None
for module, names in json.loads(sys.argv.pop(1)).items():
    for name in names:
        delattr(importlib.import_module(module), name)
FOLDERS = ("/proc/", "/sys/", "/dev/")
opened = open

def without(path, *rest, **named):
    if str(path).startswith(FOLDERS) and str(path) != os.devnull:
        raise FileNotFoundError(2, "No such file or directory", str(path))
    return opened(path, *rest, **named)

import builtins, io
builtins.open = io.open = without

from halfwise.__main__ import main
for words in json.loads(sys.argv.pop()):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""


def names_on(platform: str, body: list[ast.stmt]) -> Iterator[str]:
    """The names that a stub of the standard library defines on a platform."""
    faked = SimpleNamespace(platform=platform, version_info=sys.version_info)
    for part in body:
        if isinstance(part, ast.If):
            taken = eval(ast.unparse(part.test), {"sys": faked})  # noqa: S307 - it is typeshed's
            yield from names_on(platform, part.body if taken else part.orelse)
        elif isinstance(part, ast.FunctionDef | ast.ClassDef):
            yield part.name
        elif isinstance(part, ast.AnnAssign | ast.Assign):
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            yield from map(ast.unparse, targets)


def missing(module: str) -> set[str]:
    """What a module has on Linux and not on Windows."""
    file = next(f for f in (STUBS / f"{module}.pyi", STUBS / module / "__init__.pyi") if f.exists())
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return {*names_on("linux", body)} - {*names_on("win32", body)}


@pytest.fixture(scope="module")
def posix_only() -> dict[str, list[str]]:
    """What `src` takes from modules that Windows has too, and that they do not have there."""
    text = "\n".join(f.read_text(encoding="utf-8") for f in (ROOT / "src").rglob("*.py"))
    modules = ("os", "signal", "select", "mmap", "socket", "time")
    used = {name: {*re.findall(rf"\b{name}\.(\w+)", text)} for name in modules}
    # Signals and flags may be named in full or made of parts.
    used["signal"] |= {"SIGHUP", "SIGKILL"}
    used["os"] |= {"O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY"}
    return {name: sorted(used[name] & missing(name)) for name in modules}


def test_the_stubs_say_what_windows_lacks(posix_only: dict[str, list[str]]) -> None:
    assert {"register_at_fork", "O_NONBLOCK", "killpg"} <= {*posix_only["os"]}
    assert {"SIGHUP", "SIGKILL", "pthread_sigmask"} <= {*posix_only["signal"]}
    assert "getpid" not in posix_only["os"]


def test_nothing_in_the_core_needs_posix(tmp_path: Path, posix_only: dict[str, list[str]]) -> None:
    script = tmp_path / "elsewhere.py"
    script.write_text(ELSEWHERE, encoding="utf-8")
    ill = models.conv_chain()
    onnx.save(ill.proto, tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", **dict(ill.inputs))  # type: ignore[arg-type]
    commands = (
        ("fix", "model.onnx", "--inputs", "data.npz", "-o", "run"),
        ("verify", "model.onnx", "run/model.onnx", "--inputs", "data.npz"),
        ("report", "run"),
        ("report", "run", "--html"),
        ("lint", "model.onnx"),
    )
    done = subprocess.run(
        [sys.executable, script, json.dumps(posix_only), json.dumps(commands)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = json.loads((tmp_path / "run" / "run.json").read_bytes())
    assert run["verdict"]["passed"]
    assert run["cost"]["peak_rss_bytes"] is None
    assert (tmp_path / "run" / "report.html").is_file()
    assert not list(tmp_path.glob(".halfwise*"))
