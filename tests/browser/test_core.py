"""What all sections of the page share: numbers, tables, links."""

import csv
import io
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from halfwise.page.document import write_page
from halfwise.store import write_run
from halfwise.wording import number
from tests.browser.conftest import Look, PageOf
from tests.browser.test_report import saved
from tests.unit.reporting.runs import output_error, run, verdict

DRAWN = np.random.default_rng(0)
FIXED = (1.0, 999.7, 65504.0, 999999.6, 1e6, 1.2e-5, 1e-4, 9.9996e-5, -0.0, -0.25)


@pytest.fixture
def page(tmp_path: Path, look: Look) -> Page:
    """Return the page of a small run."""
    write_run(tmp_path, run())
    return look(write_page(tmp_path)).page


WIDE = "[...document.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth).length"


def test_that_a_table_that_does_not_fit_says_that_it_scrolls(look: Look, page_of: PageOf) -> None:
    page = look(page_of("large"), width=320).page
    page.locator(".wider:visible").first.wait_for()
    assert page.locator(".wider:visible").count() == page.evaluate(WIDE) > 0
    page.set_viewport_size({"width": 1200, "height": 900})
    expect(page.locator(".wider:visible")).to_have_count(0)
    assert page.evaluate(WIDE) == 0


def test_that_numbers_read_as_in_the_terminal(page: Page) -> None:
    drawn = DRAWN.standard_normal(400) * 10.0 ** DRAWN.uniform(-12, 12, 400)
    for digits in (3, 5):
        values = [*FIXED, *map(float, drawn)]
        told = page.evaluate(
            "([all, n]) => all.map((x) => halfwise.number(x, n))", [values, digits]
        )
        assert told == [number(value, digits) for value in values]
    stored = ["NaN", "Infinity", "-Infinity", None]
    told = page.evaluate("(all) => all.map((x) => halfwise.number(x))", stored)
    assert told == [*map(number, (nan, inf, -inf)), ""]


def test_that_cells_come_back_from_a_csv_file(page: Page) -> None:
    cells = ["a,b", 'say "x"', "two\nlines", " space ", "1.5e-3", "-2", "−2", "", "</script>", "ß"]
    text = page.evaluate(
        "(row) => halfwise.csv({columns: row.map(String), rows: [row]})", [*cells, 3, None]
    )
    head, row = csv.reader(io.StringIO(text, newline=""))
    assert len(head) == len(cells) + 2
    assert row == [*cells, "3", ""]
    formulas = ["=1+1", "+cmd|' /C calc'!A0", "@SUM(A1)", "-2+3", "\t=1"]
    text = page.evaluate("(row) => halfwise.csv({columns: row, rows: [row]})", formulas)
    assert all(cell.startswith("'") for row in csv.reader(io.StringIO(text)) for cell in row)


def test_that_values_are_sorted_by_what_they_mean(page: Page) -> None:
    ranked = ["2 KiB", "1 MiB", "3 bytes"], ["900 µs", "1.5 ms", "2 s"], ["−inf", "−2", "<0.01 %"]
    for cells in ranked:
        values = page.evaluate("(all) => all.map((x) => halfwise.rank(x))", cells)
        assert all(isinstance(value, int | float) for value in values)
    assert page.evaluate("halfwise.rank('2 KiB') < halfwise.rank('1 MiB')")
    assert page.evaluate("halfwise.rank('900 µs') < halfwise.rank('1.5 ms')")
    assert page.evaluate("halfwise.rank('4 of 7')") == "4 of 7"


def test_that_a_long_table_is_cut_and_filtered(page: Page) -> None:
    page.evaluate("""() => {
        const rows = Array.from({ length: 120 }, (_, i) => [`n${i}`, i, "x".repeat(1000)]);
        halfwise.table(document.querySelector("#verdict .body"),
            { name: "Made up", columns: ["name", "value", "text"], rows });
    }""")
    table = page.get_by_role("region", name="Made up", exact=True)
    rows = table.locator("tbody tr")
    assert rows.count() == 50
    assert table.bounding_box()["height"] < 50 * 120  # type: ignore[index]
    page.get_by_role("searchbox", name="Filter Made up").fill("N11")
    assert rows.count() == 11
    page.get_by_role("searchbox", name="Filter Made up").fill("")
    page.get_by_role("button", name="Show all 120 rows").click()
    assert rows.count() == 120


def test_that_a_table_that_is_cut_is_saved_whole(tmp_path: Path, look: Look) -> None:
    outputs = {f"an output with quite a long name {i}": output_error() for i in range(30)}
    write_run(tmp_path, run(verdict=verdict(outputs=outputs)))
    seen = look(write_page(tmp_path))
    table = seen.page.get_by_role("region", name="Error against FP32", exact=True)
    assert table.locator("tbody tr").count() == 12
    assert table.get_by_text("and 18 more").count() == 0
    rows = saved(seen, "Error against FP32")[1:]
    assert [row[0] for row in rows] == list(outputs)


def test_that_words_between_backticks_are_code(page: Page) -> None:
    page.evaluate("""() => halfwise.table(document.querySelector("#verdict .body"),
        { name: "Made up", columns: ["what", "how"], rows: [["x", "run `halfwise lint` <b>"]] })""")
    cell = page.get_by_role("region", name="Made up", exact=True).locator("td").nth(1)
    assert cell.inner_text() == "run halfwise lint <b>"
    assert cell.locator("code").inner_text() == "halfwise lint"


def test_that_a_link_opens_any_name_in_its_section(page: Page) -> None:
    name = "/a b/%20</script>#=é\u202e\n'\""
    page.evaluate(
        """(name) => {
        window.opened = [];
        halfwise.section("kept", () => ({ open: (key) => window.opened.push(key) }));
        const body = document.querySelector("#verdict .body");
        body.append(halfwise.link("kept", name, "here"), halfwise.link("absent", name, "there"));
    }""",
        name,
    )
    page.get_by_role("link", name="here", exact=True).click()
    page.wait_for_function("window.opened.length === 1")
    page.get_by_role("link", name="here", exact=True).click()
    page.wait_for_function("window.opened.length === 2")
    assert set(page.evaluate("window.opened")) == {name}
    assert not page.get_by_role("link", name="there", exact=True).count()
