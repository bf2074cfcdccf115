"""Write the table of docs/failure-classes.md from the models in tests/models.

usage: python tools/failure_classes.py
"""

import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.models import CLASSES, Ill  # noqa: E402

PAGE = ROOT / "docs" / "failure-classes.md"
HEADER = "| model | what goes wrong | kept in FP32 | guards | seen at |\n|---|---|---|---|---|"


def listing() -> str:
    """Return one heading and table per family of failures."""
    ills = [make() for make in CLASSES]
    return "\n\n".join(
        f"## {family}\n\n{HEADER}\n" + "\n".join(row(ill) for ill in members)
        for family, members in groupby(ills, key=lambda ill: ill.family)
    )


def row(ill: Ill) -> str:
    """Return the line of one model."""
    guards = ", ".join(sorted(str(g) if g else "none: no number stands out" for g in ill.guards))
    return (
        f"| `{ill.name}` | {ill.story} | {kept(ill)} | {guards or '–'} "
        f"| {', '.join(links(ill.issues)) or '–'} |"
    )


def kept(ill: Ill) -> str:
    """Return which nodes are kept, in graph order, or how many."""
    order = [node.name for node in ill.proto.graph.node if node.name in ill.kept]
    nodes = ", ".join(f"`{name}`" for name in order) if ill.size is None else f"{ill.size} nodes"
    return " ".join(
        [nodes or "nothing", *([f"(`{' '.join(ill.options)}`)"] if ill.options else [])]
    )


def links(issues: tuple[str, ...]) -> Iterator[str]:
    """Yield a link per thread; GitHub leads from the address of an issue to a pull request."""
    for issue in issues:
        repository, _, number = issue.partition("#")
        yield f"[{issue}](https://github.com/{repository}/issues/{number})"


def with_listing(text: str) -> str:
    """Return the page with its list made anew."""
    begin, end = "<!-- begin classes -->", "<!-- end classes -->"
    return re.sub(f"{begin}.*{end}", f"{begin}\n{listing()}\n{end}", text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(with_listing(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
