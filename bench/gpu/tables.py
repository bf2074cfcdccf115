"""Writes the table of docs/tensorrt-measured.md from the results of `bench/gpu/figures.py`.

    python -m bench.gpu.tables

It needs no GPU: it reads `bench/results/gpu_<name>.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

from bench.gpu.jobs import JOBS
from bench.runs import ROOT

RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "tensorrt-measured.md"
FORMATS = {"fp32": "FP32", "tf32": "TF32", "fp16": "FP16", "mixed": "mixed"}
MARK = "<!-- bench/gpu/tables.py: engines -->"


def measured(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the details of every finished job, by its name."""
    paths = {name: folder / f"gpu_{name}.json" for name in JOBS}
    return {
        name: json.loads(path.read_text(encoding="utf-8"))["details"]
        for name, path in paths.items()
        if path.exists()
    }


def engines(details: dict[str, dict[str, Any]]) -> Iterator[list[str]]:
    """Yield, for each model, SNR of the worst output and latency of every engine of its table."""
    for name, detail in details.items():
        rows = detail["engines"]
        cells = [_cell(rows[kind]) if kind in rows else "–" for kind in FORMATS]
        yield [name, *cells]


def _cell(row: dict[str, Any]) -> str:
    if "errors" not in row or "latency" not in row:
        return "does not run"
    snr = min(float(o["snr_db"]) for o in row["errors"].values() if o["snr_db"] is not None)
    sign = "" if row["passed"] else " ✗"
    level = "−∞" if snr == -inf else f"{snr:.0f}"
    return f"{level} dB, {row['latency']['median_ms']:.3g} ms{sign}"


def markdown(head: Sequence[str], rows: Iterator[list[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def put(page: str, mark: str, text: str) -> str:
    """Return `page` with `text` between its two marks."""
    before, _, after = page.split(mark)
    return f"{before}{mark}\n\n{text}\n\n{mark}{after}"


def main() -> None:
    """Write the table."""
    details = measured(RESULTS)
    page = PAGE.read_text(encoding="utf-8")
    table = markdown(["model", *FORMATS.values()], engines(details))
    PAGE.write_text(put(page, MARK, table), encoding="utf-8")


if __name__ == "__main__":
    main()
