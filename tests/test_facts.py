"""Holds the source to one rule: what was said is never read again, decisions read facts.

A sentence that halfwise made is for people. Code that looks for words in it breaks when the words
change. Only what other programs and users write is read: logs, options, files.
"""

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "halfwise"

SENTENCES = {
    *("advice", "cause", "failure", "finding", "hint", "message", "note", "reason", "remark"),
    *("said", "sentence", "text", "trouble", "warning", "why"),
}
"""What sentences are called; their plurals too."""
LINES = SENTENCES | {"line", "step", "told", "words"}
"""The same, for what a regular expression searches."""
PATTERNS = {"findall", "finditer", "fullmatch", "match", "search", "split"}
READING = {"endswith", "partition", "removeprefix", "removesuffix", "rpartition", "startswith"}

OTHERS = {
    "emulation/": "what ONNX Runtime says",
    "page/finish.py": "stack traces that PyTorch's exporter leaves in a model",
    "fixing/engines/device.py": "the builder's own words, which a message may end with",
    "graph/protobufs.py": "what ONNX says of a graph that it refuses",
    "inputs/": "files, specifications, and what NumPy says of a damaged file",
    "linting/structure.py": "what ONNX says of an operator that it does not know",
    "page/document.py": "backticks, which mark what is drawn as code",
    "reporting/engines.py": "the last line of a log",
    "targets/rtx.py": "the list of kernels in a builder's log",
    "tensorrt/": "logs, names of layers, options of trtexec, what a worker's command prints",
    "tools/migrate.py": "a user's command, log or script",
}
"""Where the text of somebody else is read, and whose it is."""


def called(node: ast.expr) -> str:
    """Return what a value is called: of `str(each.reason.strip())[0]`, "reason"."""
    while True:
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name):
                return name
            case ast.Subscript(value=inner) | ast.Call(func=ast.Attribute(value=inner)):
                node = inner
            case ast.Call(func=ast.Name(), args=[inner, *_]):
                node = inner
            case _:
                return ""


def is_words(node: ast.expr) -> bool:
    """Return whether it is text of several words, or made of such."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and " " in node.value.strip(" ") + node.value[-1:]
    return isinstance(node, ast.Tuple) and any(map(is_words, node.elts))


def is_sentence(node: ast.expr, names: Collection[str] = SENTENCES) -> bool:
    return called(node) in names or called(node).removesuffix("s") in names


def readings(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that look for words in a sentence."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[right]):
                if called(right) in SENTENCES or is_words(left):
                    yield node.lineno
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
                if is_words(left) or is_words(right):
                    yield node.lineno
            case ast.Call(func=ast.Attribute(value=owner, attr=name), args=[first, *_]):
                searched = node.args[1:2] if called(owner) == "re" else [first]
                found = name in READING and (is_sentence(owner) or is_words(first))
                if found or (name in PATTERNS and any(is_sentence(s, LINES) for s in searched)):
                    yield node.lineno


@pytest.mark.parametrize(
    "line",
    [
        'passed = " looks " not in sign.text',
        'found = [n for n in case.notes if n.startswith("warning: ")]',
        'cause = cause[0].upper() if cause.startswith(("the ", "a ")) else cause',
        "told = finding.hint in build.message",
        "text = text.removesuffix(fix)",
        'island = rule == "Kept by the model itself"',
        'start = "mean and" in how',
        "command = _COMMAND.search(line)",
        'command = re.search(r": (halfwise .+)$", step.text)',
    ],
)
def test_what_the_rule_finds(line):
    assert list(readings(ast.parse(line))) == [1]


@pytest.mark.parametrize(
    "line",
    ['kept.guard == "eps"', 'note.severity == "warning"', "name in notes", 'x.startswith("..")'],
)
def test_what_it_leaves(line):
    assert not list(readings(ast.parse(line)))


def test_no_decision_reads_a_sentence():
    found = [
        f"  {path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if not str(path.relative_to(PACKAGE)).startswith(tuple(OTHERS))
        for line in readings(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found, "Decide on a fact in place of words:\n" + "\n".join(found)


@pytest.mark.parametrize("place", OTHERS)
def test_no_exception_outlives_its_reason(place):
    files = [
        path for path in PACKAGE.rglob("*.py") if str(path.relative_to(PACKAGE)).startswith(place)
    ]
    assert any(list(readings(ast.parse(path.read_text(encoding="utf-8")))) for path in files)


CODE = {
    "fixing/remarks.py": "a tolerance, to be copied behind --rel-max",
    "page/sections.py": "numbers that a chart draws",
    "tensorrt/recipe.py": "options of trtexec",
    "tools/preprocessing/": "Python that is written, and numbers that are rounded to be compared",
    "wording.py": "numbers are worded there",
}
"""Where digits are not chosen for people."""


def digits(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that choose how many digits of a number, or which share, are shown."""
    for node in ast.walk(tree):
        match node:
            case ast.FormattedValue(format_spec=ast.JoinedStr(values=[ast.Constant(value=spec)])):
                if isinstance(spec, str) and spec.startswith(".") and spec[-1] in "ge%":
                    yield node.lineno


def test_numbers_are_worded_in_one_place():
    assert list(digits(ast.parse('f"{x:.3g} {y:.0%} {z:g} {w:.1f} {v:,}"'))) == [1, 1]
    found = [
        f"  {path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if not str(path.relative_to(PACKAGE)).startswith((*CODE, "tensorrt/worker.py"))
        for line in digits(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found, "Use `wording.number` or `percent`:\n" + "\n".join(found)
