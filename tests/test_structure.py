"""Holds the source tree to the house rules on size, names and imports."""

from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "halfwise"

MAX_FILE_LINES = 650
# The worker is sent to another interpreter as one text (docs/decisions/0011-tensorrt-worker.md).
ONE_TEXT = PACKAGE / "tensorrt" / "worker.py"
VAGUE_NAMES = {"base", "common", "helper", "helpers", "impl", "manager", "misc", "util", "utils"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def line_count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def fail_listing(rule: str, offenders: list[str]) -> None:
    if offenders:
        pytest.fail(f"{rule}\n" + "\n".join(f"  {line}" for line in offenders), pytrace=False)


def test_files_are_short() -> None:
    fail_listing(
        f"A file has at most {MAX_FILE_LINES} lines; split these by what they do:",
        [
            f"{path.relative_to(ROOT)}: {line_count(path)} lines"
            for path in modules()
            if line_count(path) > MAX_FILE_LINES and path != ONE_TEXT
        ],
    )


def test_names_tell_what_a_module_does() -> None:
    folders = {path.parent for path in modules()} - {PACKAGE}
    fail_listing(
        "A module is named for what it does; these names fit anything:",
        [
            str(path.relative_to(ROOT))
            for path in sorted({*modules(), *folders})
            if path.stem.strip("_") in VAGUE_NAMES
        ],
    )


def cycles() -> Iterator[frozenset[str]]:
    """Sets of modules that import one another, also inside functions and for types alone."""
    graph = grimp.build_graph("halfwise")
    reached = {module: graph.find_upstream_modules(module) for module in graph.modules}
    for module, others in reached.items():
        if cycle := {other for other in others if module in reached[other]}:
            yield frozenset({module, *cycle})


def test_no_module_imports_itself_through_others() -> None:
    offenders = sorted(", ".join(sorted(cycle)) for cycle in {*cycles()})
    fail_listing("These modules import one another:", offenders)
