"""Every section of the page, used: by mouse, by key, and by the links between them."""

import pytest

from tests.browser.conftest import Look, PageOf

HEIGHTS = """(bars) => {
    const scale = bars[0].getScreenCTM().d;
    return [bars.map((bar) => bar.getBoundingClientRect().height / scale),
        bars.map((bar) => Number(bar.getAttribute("height")))];
}"""
"""What bars are drawn as, and what they were meant to be: styles of another section change it."""


def test_a_cause_leads_to_its_line_and_to_the_graph(look: Look, page_of: PageOf) -> None:
    page = look(page_of("large")).page
    causes = page.locator("#causes")
    first = causes.locator("details.fault").first
    assert first.get_attribute("open") is not None
    assert "norm1.py:" in first.inner_text()
    assert "y = self.pow(x)" in first.inner_text()
    bars = first.locator("figure.histogram").first.locator("rect.bar")
    assert bars.count() > 10
    drawn, meant = bars.evaluate_all(HEIGHTS)
    assert drawn == pytest.approx(meant, rel=0.01)
    hidden = first.locator("li").filter(visible=False).count()
    first.get_by_role("button", name="Show all").first.click()
    assert first.locator("li").filter(visible=False).count() < hidden
    link = first.locator("a[href^='#graph=']").first
    name = link.inner_text()
    link.press("Enter")
    assert page.locator("#graph .where").first.inner_text() == name
    page.locator("#graph").get_by_role("link", name="Its cause").click()
    assert page.evaluate("location.hash").startswith("#causes=")


def test_numbers_that_json_lacks_are_told_as_elsewhere(look: Look, page_of: PageOf) -> None:
    kept = look(page_of("old")).page.locator("#kept")
    cells = kept.locator("tbody td:last-child").all_text_contents()
    assert cells == ["inf"] * 5


def test_a_diagnosis_shows_values_against_the_range(look: Look, page_of: PageOf) -> None:
    causes = look(page_of("diagnosis")).page.locator("#causes")
    assert causes.locator("figure.histogram rect.bar.beyond").count() > 3
    assert causes.get_by_role("button", name="Values").count() == 4
