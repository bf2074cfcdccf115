"""Figures of a bench with their goals, the file that stores them, and the table that shows them."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import onnxruntime

PACKAGES = ("halfwise", "numpy", "onnx", "onnx-ir", "scipy")


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Attributes:
        what: What was measured, with its unit.
        reach: The goal, such as "≤ 4"; None if the number is only reported.
        measured: The number.
        reached: Whether the goal is reached; true without one.
        note: Details behind the number.
    """

    what: str
    reach: str | None
    measured: float | str | bool
    reached: bool
    note: str = ""


def at_most(what: str, measured: float, limit: float, note: str = "") -> Figure:
    """Return a figure that must not exceed `limit`; NaN does not reach it."""
    return Figure(what, f"≤ {limit:g}", _plain(measured), bool(measured <= limit), note)


def at_least(what: str, measured: float, limit: float, note: str = "") -> Figure:
    """Return a figure that must be `limit` or more; NaN does not reach it."""
    return Figure(what, f"≥ {limit:g}", _plain(measured), bool(measured >= limit), note)


def equal(
    what: str, measured: float | str | bool, wanted: float | str | bool, note: str = ""
) -> Figure:
    """Return a figure that must be exactly `wanted`."""
    reach = f"= {wanted:g}" if type(wanted) in (int, float) else str(wanted)
    return Figure(what, reach, _plain(measured), measured == wanted, note)


def reported(what: str, measured: float | str | bool, note: str = "") -> Figure:
    """Return a figure without a goal."""
    return Figure(what, None, _plain(measured), True, note)


def _plain(measured: float | str | bool) -> float | str | bool:
    """Return a NumPy number as a Python number, which JSON can hold."""
    return measured.item() if hasattr(measured, "item") else measured


def machine() -> dict[str, Any]:
    """Return what timings depend on: processor, usable cores, load, memory, versions."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "cores_of_machine": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "versions": {
            **{name: metadata.version(name) for name in PACKAGES},
            "onnxruntime": onnxruntime.__version__,
        },
    }


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


@dataclass
class Result:
    """What one bench found; the content of `results/<name>.json`.

    Attributes:
        name: Name of the bench.
        command: The command that measures it again.
        figures: What was measured.
        skipped: What was not measured, and why; None if everything was.
        machine: What it was measured on.
        date: UTC, ISO 8601.
        details: Further measurements; left out of the file if empty.
    """

    name: str
    command: str
    figures: list[Figure]
    skipped: str | None
    machine: dict[str, Any] = field(default_factory=machine)
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    details: Any = None

    @property
    def reached(self) -> bool:
        """Whether every figure is reached."""
        return all(f.reached for f in self.figures)

    def save(self, folder: Path) -> Path:
        """Write the result into `folder` and return its file; non-finite numbers as strings."""
        folder.mkdir(parents=True, exist_ok=True)
        content = asdict(self)
        if self.details is None:
            del content["details"]
        for figure in content["figures"]:
            if isinstance(figure["measured"], float) and not _is_finite(figure["measured"]):
                figure["measured"] = str(figure["measured"])
        file = folder / f"{self.name}.json"
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        file.write_text(text + "\n", encoding="utf-8")
        return file


def _is_finite(value: float) -> bool:
    return value - value == 0


def table(results: Iterable[Result]) -> str:
    """Return the results as text: a line for each figure, then what was skipped and missed."""
    results = list(results)
    rows = [("", "bench", "what", "reach", "measured")]
    for result in results:
        for figure in result.figures:
            mark = "" if figure.reach is None else "ok" if figure.reached else "MISSED"
            number = _text(figure.measured)
            rows.append((mark, result.name, figure.what, figure.reach or "–", number))
    lines = _aligned(rows)
    lines += [f"skipped: {r.name}: {r.skipped}" for r in results if r.skipped]
    missed = sum(not f.reached for r in results for f in r.figures)
    counted = sum(f.reach is not None for r in results for f in r.figures)
    lines.append(f"{counted - missed} of {counted} figures reached")
    return "\n".join(lines)


def _text(measured: float | str | bool) -> str:
    return f"{measured:.3g}" if type(measured) is float else str(measured)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
