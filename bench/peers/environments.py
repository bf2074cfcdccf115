"""The virtual environments of the peers: made once from pinned requirements, then reused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.runs import ROOT

HERE = Path(__file__).resolve().parent
SECONDS_TO_INSTALL = 1800
INSTALL = ("install", "--quiet", "--retries", "1", "--timeout", "30", "--requirement")
TOLD = (
    *("nvidia-modelopt", "torch", "onnxconverter-common", "polygraphy"),
    *("onnx", "onnxruntime", "onnxruntime-gpu", "numpy"),
)
"""Packages whose versions are recorded."""
_VERSIONS = """
import importlib.metadata as m, json, sys
found = {d.metadata["Name"]: d.version for d in m.distributions()}
print(json.dumps({name: found[name] for name in sys.argv[1:] if name in found}))
"""


@dataclass(frozen=True)
class Environment:
    """An environment, or why it is missing.

    Attributes:
        folder: The virtual environment.
        packages: Versions of what `TOLD` names.
        missing: The installer's message; None where the environment is there.
    """

    folder: Path
    packages: dict[str, str]
    missing: str | None = None

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / "bin" / "python")

    @property
    def packages_folder(self) -> Path:
        """Where its packages are."""
        return next((self.folder / "lib").glob("python*/site-packages"))


def cache_folder() -> Path:
    """Return the folder that keeps what benches need again: $XDG_CACHE_HOME/halfwise-bench."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "halfwise-bench"


def environment(name: str, requirements: Path | None = None) -> Environment:
    """Return the environment `name`, made from requirements-NAME.txt unless it is there."""
    requirements = requirements or HERE / f"requirements-{name}.txt"
    pins = requirements.read_bytes() + sys.version.encode()
    folder = cache_folder() / "venvs" / f"{name}-{hashlib.sha256(pins).hexdigest()[:12]}"
    complete = folder / "complete.json"
    if not complete.is_file():
        shutil.rmtree(folder, ignore_errors=True)
        if missing := _install(folder, requirements):
            shutil.rmtree(folder, ignore_errors=True)
            return Environment(folder, {}, missing)
        python = folder / "bin" / "python"
        told = subprocess.run(
            [python, "-c", _VERSIONS, *TOLD], capture_output=True, text=True, check=True
        )
        complete.write_text(told.stdout, encoding="utf-8")
    return Environment(folder, json.loads(complete.read_text(encoding="utf-8")))


def _install(folder: Path, requirements: Path) -> str | None:
    """Make the environment; return what went wrong."""
    commands = (
        [str(ROOT / "tools" / "make-venv"), str(folder), sys.executable],
        [str(folder / "bin" / "pip"), *INSTALL, str(requirements)],
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    for command in commands:
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=SECONDS_TO_INSTALL
            )
        except subprocess.TimeoutExpired:
            return f"{Path(command[0]).name} took more than {SECONDS_TO_INSTALL} s"
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            errors = [line for line in lines if line.startswith("ERROR")]
            return (errors or lines or [f"exit code {done.returncode}"])[-1]
    return None
