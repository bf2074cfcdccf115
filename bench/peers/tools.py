"""The compared tools, and how each is started."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.peers.environments import HERE, Environment
from bench.peers.tasks import Task
from bench.runs import ROOT


@dataclass(frozen=True)
class Tool:
    """One column of the comparison.

    Attributes:
        name: Its name in the results.
        title: Its name in tables.
        runner: File in `runners/`.
        environment: Name of its requirements; None runs it in this environment.
        settings: Settings for the runner.
        uses_halfwise: Whether it depends on halfwise's code.
        beside_halfwise: Run by this interpreter, the environment giving only its packages.
    """

    name: str
    title: str
    runner: str
    environment: str | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    uses_halfwise: bool = True
    beside_halfwise: bool = False

    def command(self, task: Task, out: Path, place: Environment | None) -> list[str]:
        """Return the command that makes `out`/mixed.onnx."""
        if self.environment is None:
            calibration, heldout = task.folder / "calibration", task.folder / "heldout"
            halfwise = [sys.executable, "-m", "halfwise", "fix", str(task.model)]
            data = ["--inputs", str(calibration), "--heldout", str(heldout)]
            # Peers repair nothing; what repairs spare is in `bench/repairs.py`.
            return [*halfwise, *data, "--no-repair", "-o", str(out / "run"), *task.arguments]
        assert place is not None
        python = sys.executable if self.beside_halfwise else place.python
        settings = json.dumps(dict(self.settings))
        return [python, str(HERE / "runners" / self.runner), str(task.folder), str(out), settings]

    def variables(self, place: Environment | None) -> dict[str, str]:
        """Return the environment variables of the command."""
        paths = [str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        if self.beside_halfwise and place is not None:
            paths.append(str(place.packages_folder))
        # Without bytecode a process compiles all that it imports, which no user's does twice.
        given = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
        return {**given, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


TOOLS = (
    Tool("halfwise", "halfwise", "", None),
    Tool(
        *("autocast-512", "AutoCast 512", "autocast.py", "autocast", {"data_max": 512}),
        uses_halfwise=False,
    ),
    Tool(
        *("autocast-65504", "AutoCast 65504", "autocast.py", "autocast", {"data_max": 65504}),
        uses_halfwise=False,
    ),
    Tool(
        *("converter-search", "converter-common search", "onnxconverter.py"),
        *("onnxconverter-common", {"search": True}),
    ),
    Tool(
        *("converter-float16", "converter-common FP16", "onnxconverter.py"),
        *("onnxconverter-common", {"search": False}),
    ),
    Tool(
        *("polygraphy-forward", "Polygraphy forward", "polygraphy_bisect.py", "polygraphy"),
        {"direction": "forward"},
        beside_halfwise=True,
    ),
    Tool(
        *("polygraphy-reverse", "Polygraphy reverse", "polygraphy_bisect.py", "polygraphy"),
        {"direction": "reverse"},
        beside_halfwise=True,
    ),
)
