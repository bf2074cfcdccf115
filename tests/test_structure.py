"""Holds the source tree to the house rules on size, names and mirrored tests."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "halfwise"
UNIT_TESTS = ROOT / "tests" / "unit"
CLI_TESTS = ROOT / "tests" / "cli"

MAX_FILE_LINES = 600
# The worker is sent to another interpreter as one text (docs/decisions/0011-tensorrt-worker.md).
ONE_TEXT = PACKAGE / "tensorrt" / "worker" / "worker.py"
MAX_FUNCTION_LINES = 60
# Shorter modules hold a name or two and are covered by the tests of whoever uses them.
MIN_LINES_WITH_TEST = 20
VAGUE_NAMES = {"base", "common", "helper", "helpers", "impl", "manager", "misc", "util", "utils"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def line_count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


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


def test_functions_are_short() -> None:
    offenders = []
    for path in modules():
        for function in functions(path):
            length = (function.end_lineno or function.lineno) - function.lineno + 1
            if length > MAX_FUNCTION_LINES:
                where = f"{path.relative_to(ROOT)}:{function.lineno}"
                offenders.append(f"{where} {function.name}: {length} lines")
    fail_listing(
        f"A function has at most {MAX_FUNCTION_LINES} lines; give parts of these a name:", offenders
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


def test_every_module_has_a_mirrored_test() -> None:
    offenders = []
    for path in modules():
        if path.name == "__init__.py" or line_count(path) < MIN_LINES_WITH_TEST:
            continue
        inside = path.relative_to(PACKAGE)
        name = f"test_{path.stem.strip('_')}.py"
        places = [UNIT_TESTS / inside.parent / name]
        if inside.parts[0] == "cli":
            places.append(CLI_TESTS.joinpath(*inside.parts[1:-1], name))
        if not any(place.is_file() for place in places):
            expected = " or ".join(str(place.relative_to(ROOT)) for place in places)
            offenders.append(f"{path.relative_to(ROOT)}: add {expected}")
    fail_listing("A module has its unit test at the mirrored path; these have none:", offenders)
