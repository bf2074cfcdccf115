"""Names and messages that mean harm: nothing of them runs, in page, CSV or terminal."""

import csv
import io
import shutil
import unicodedata
from html.parser import HTMLParser

import pytest

from halfwise.page.document import write_page
from tests.browser.conftest import Look, PageOf
from tests.browser.folders import called
from tests.browser.hostile import LONG, MARK, TEXTS, spoilt
from tests.browser.network import network

TAGS = frozenset(("iframe", "object", "embed", "base", "form", "img", "svg"))
"""Tags that only a name would have put into the file as it is written."""
HIDDEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
"""Categories of characters that are not seen, and some of which turn what follows."""
LAID_OUT = str.maketrans("", "", "\n\t")
TEXT = """() => [document.body].map(function told(e) {
    return e.tagName === "SCRIPT" ? "" : [...e.childNodes].map((n) =>
        n.nodeType === Node.TEXT_NODE ? n.data : told(n)).join("");
}).join("")"""
"""All text of a page, of what is hidden, too."""

SAVED = """async () => {
    const [texts, names] = [[], []];
    URL.createObjectURL = (blob) => { texts.push(blob.text()); return "data:,"; };
    HTMLAnchorElement.prototype.click = function () { names.push(this.download); };
    document.querySelectorAll("button[aria-label$=' as CSV']").forEach((button) => button.click());
    return (await Promise.all(texts)).map((text, i) => [names[i], text]);
}"""
"""Presses the button of each table; returns the names and the texts of the files."""


class Tags(HTMLParser):
    """Counts the tags of a document, and the attributes that could run or load something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.active: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.tags.append(tag)
        self.active += [(n, v) for n, v in attrs if n.startswith("on") or n in ("src", "style")]


def test_the_texts_reach_all_kinds_of_names() -> None:
    spoiled = {spoilt(node.name) for node in network(92)}
    assert all(any(text in name for name in spoiled) for text in TEXTS)
    assert any(name.endswith(LONG) for name in {spoilt(node.gives) for node in network(5000)})


def test_nothing_gets_out_of_its_place(look: Look, page_of: PageOf) -> None:
    """What would run, runs as soon as the page is open; `look` holds it to have been silent."""
    file = page_of("hostile")
    written, shown = Tags(), look(file).page
    written.feed(file.read_text(encoding="utf-8"))
    # The headroom strip.
    assert [tag for tag in written.tags if tag in TAGS] == ["svg", "svg"]
    assert written.active == []
    assert shown.locator("script").count() == written.tags.count("script")
    text = str(shown.evaluate(TEXT))
    assert MARK in text
    assert "{{7*7}}" in text
    assert not HIDDEN & {unicodedata.category(character) for character in text.translate(LAID_OUT)}
    assert shown.evaluate("Object.keys(Object.prototype)") == []


def test_no_cell_of_a_table_is_a_formula(look: Look, page_of: PageOf) -> None:
    """Of all tables: what would be saved, since Chromium saves no more than ten files at once."""
    page = look(page_of("hostile")).page
    files = page.evaluate(SAVED)
    assert len(files) > 4
    cells: list[str] = []
    for name, text in files:
        assert name.removesuffix(".csv").replace("-", "").isalnum()
        assert len(name) < 100
        rows = list(csv.reader(io.StringIO(text)))
        assert len({len(row) for row in rows}) == 1
        cells += [cell for row in rows for cell in row]
    assert any(cell.startswith("'") for cell in cells)
    assert [c for c in cells if c[:1] in ("=", "+", "-", "@", "\t", "\r") and not number(c)] == []


def number(text: str) -> bool:
    """Return whether a cell is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_a_folder_of_any_name_has_a_page(look: Look, page_of: PageOf) -> None:
    kept = page_of("hostile").parent
    spoiled = "".join(TEXTS).replace("/", "_").replace("\0", "_").encode()[:200]
    folder = kept.parent / (spoiled + b"\xff").decode("utf-8", "surrogateescape")
    shutil.copytree(kept, folder)
    assert look(write_page(folder)).page.locator("#verdict").is_visible()


@pytest.mark.parametrize(("columns", "options"), [("40", ("--full",)), ("80", ())])
def test_a_terminal_gets_no_character_that_it_acts_on(
    columns: str, options: tuple[str, ...], page_of: PageOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    said = called(page_of("hostile").parent, 0, "report", ".", *options)
    assert "<script>" in said
    kinds = {unicodedata.category(character) for character in said.replace("\n", "")}
    assert not HIDDEN & kinds
