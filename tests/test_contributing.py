"""Holds CONTRIBUTING.md to its promise: short, and every place that it names is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "halfwise"
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

MOST_ROWS = 25
QUESTIONS = 10
MOST_FILES = 3


def section(title: str) -> str:
    return TEXT.partition(f"## {title}\n")[2].partition("\n## ")[0]


def rows() -> list[str]:
    return [line for line in section("Where is …?").splitlines() if line.startswith("| ")][1:]


def walks() -> dict[str, list[tuple[str, str]]]:
    """The steps of every question: file and the name in it."""
    lines = re.findall(r"^\d+\. (.+?\?) (.+)$", section("Ten questions"), flags=re.MULTILINE)
    return {
        question: re.findall(r"`([\w/]+\.py)` (?:`([\w.]+)`)", walk) for question, walk in lines
    }


def defined(path: Path) -> set[str]:
    """Names that a module defines, methods and fields as `Class.name`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        found |= _names(node)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for inner in node.body for name in _names(inner)}
    return found


def _names(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {t.id for t in targets if isinstance(t, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


def test_the_table_is_short_and_its_places_exist() -> None:
    assert 10 <= len(rows()) <= MOST_ROWS
    for row in rows():
        places = re.findall(r"`([\w./]+(?:/|\.py|\.md|\.toml))`", row)
        assert places, row
        for place in places:
            assert (PACKAGE / place).exists() or (ROOT / place).exists(), f"{place} in: {row}"


def test_every_room_has_a_row() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    named = {room for room in rooms if any(f"`{room}/" in row for row in rows())}
    assert rooms == named


@pytest.mark.parametrize(("question", "walk"), walks().items())
def test_a_question_is_answered_in_a_short_walk(question: str, walk: list[tuple[str, str]]) -> None:
    assert 1 <= len(walk) <= MOST_FILES, question
    for file, name in walk:
        assert name in defined(PACKAGE / file), f"{file} defines no {name}: {question}"


def test_there_are_ten_questions() -> None:
    assert len(walks()) >= QUESTIONS
