"""The pass for Olive and the recipe for Optimum's folders, as docs/pipelines.md has them.

    python bench/run.py pipelines

Each runs in a virtual environment of its own (3 GB, network), kept as those of `bench/peers`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import halfwise
from bench.figures import Figure, at_most, equal
from bench.peers.environments import Environment, environment
from bench.runs import ROOT, CommandFailed, Workbench

PAGE = ROOT / "docs" / "pipelines.md"
HERE = Path(__file__).resolve().parent
INSTALL = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target")
DIFFERENCE = 1e-3
"""Of logits around 0.1: a hundredth."""


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Run both; return figures, and what could not be installed."""
    figures, missing = list[Figure](), list[str]()
    for name, run in (("olive", olive), ("optimum", optimum)):
        place = environment(name, HERE / f"requirements-{name}.txt")
        if place.missing:
            missing.append(f"{name}: {place.missing}")
            continue
        folder = bench.folder / name
        folder.mkdir()
        figures.append(run(place, folder))
    return figures, "; ".join(missing) or None


def olive(place: Environment, folder: Path) -> Figure:
    """Run the workflow of examples/olive on the bundled model, and judge what it delivers."""
    digits = ROOT / "examples" / "digits"
    files = [digits / name for name in ("model.onnx", "inputs.npz", "heldout.npz")]
    for file in (*files, *(ROOT / "examples" / "olive").glob("*.*")):
        shutil.copy(file, folder)
    # The command's path for modules is the folder.
    _run([sys.executable, *INSTALL, str(folder), str(ROOT)], folder, place)
    (command,) = _blocks("Olive", "sh")
    _run(["sh", "-ec", command], folder, place)
    delivered = folder / "fixed" / "model.onnx"
    judged = halfwise.verify(files[0], delivered, str(files[2]))
    return equal("the model that Olive delivers passes", judged.run.verdict.passed, wanted=True)


def optimum(place: Environment, folder: Path) -> Figure:
    """Follow the recipe on a folder that Optimum exports, and load the result there."""
    script = HERE / "exports" / "from_optimum.py"
    (samples,), (commands,) = _blocks("Optimum", "python"), _blocks("Optimum", "sh")
    own = f'halfwise() {{ "{sys.executable}" -m halfwise "$@"; }}\n'
    _run([place.python, str(script)], folder, place)
    _run([place.python, "-c", samples], folder, place)
    _run(["sh", "-ec", own + commands], folder)
    told = _run([place.python, str(script), "mixed"], folder, place)
    what = "largest difference of logits that Optimum computes from both folders"
    return at_most(what, float(told.split()[-1]), DIFFERENCE)


def _blocks(title: str, kind: str) -> list[str]:
    """Return the blocks of a kind in a part of the page."""
    part = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    text = next(each for each in part if each.startswith(f"{title}\n"))
    return re.findall(rf"```{kind}\n(.*?)```", text, flags=re.DOTALL)


def _run(command: Sequence[str], folder: Path, place: Environment | None = None) -> str:
    """Return what a command prints, run in a folder with an environment's programs.

    Raises:
        CommandFailed: it does not end with 0.
    """
    programs = [] if place is None else [str(Path(place.python).parent)]
    path = os.pathsep.join([*programs, os.environ["PATH"]])
    variables = {"PATH": path, "HF_HUB_OFFLINE": "1", "OLIVE_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        told = " ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise CommandFailed(f"{command[0]} ended with {done.returncode}: {told}")
    return done.stdout
