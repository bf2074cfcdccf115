"""The page of the linter lists the rules that there are, and the findings on constraints."""

import re

from tests.test_structure import PACKAGE
from tools import lint_rules


def test_the_page_lists_every_rule() -> None:
    text = lint_rules.PAGE.read_text(encoding="utf-8")
    assert text == lint_rules.with_listing(text), "run python tools/lint_rules.py"


def test_the_page_lists_every_finding_on_constraints() -> None:
    code = (PACKAGE / "tensorrt" / "trtexec.py").read_text(encoding="utf-8")
    found = set(re.findall(r"_finding\(\s*\"([a-z-]+)\"", code))
    table = lint_rules.PAGE.read_text(encoding="utf-8").partition("## Constraints")[2]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)} == found
