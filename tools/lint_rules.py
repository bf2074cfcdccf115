"""Write the table of docs/lint.md from the rules.

usage: python tools/lint_rules.py
"""

import re
from itertools import groupby
from pathlib import Path

from halfwise.linting import FAMILIES, RULES, Rule

PAGE = Path(__file__).resolve().parent.parent / "docs" / "lint.md"
HEADER = "| rule | severity | why |\n|---|---|---|"


def listing() -> str:
    """Return one heading and table per family of rules."""
    titles = {
        module.__name__.rpartition(".")[2]: (module.__doc__ or "").partition("\n")[0].rstrip(".")
        for module in FAMILIES
    }
    return "\n\n".join(
        f"### {titles[family]}\n\n{HEADER}\n" + "\n".join(row(rule) for rule in members)
        for family, members in groupby(RULES, key=lambda rule: rule.family)
    )


def row(rule: Rule) -> str:
    """Return the table row of a rule."""
    return f"| `{rule.id}` | {rule.severity} | {rule.why} ([source]({rule.source})) |"


def with_listing(text: str) -> str:
    """Return the page with its list regenerated."""
    begin, end = "<!-- begin rules -->", "<!-- end rules -->"
    return re.sub(f"{begin}.*{end}", f"{begin}\n{listing()}\n{end}", text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(with_listing(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
