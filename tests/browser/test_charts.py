"""Charts are read by mouse and by keyboard, and say the same as their tables."""

from pathlib import Path

import pytest

from halfwise.page import write_page
from halfwise.store import write_run
from tests.browser.conftest import Look, PageOf
from tests.unit.reporting.engine_runs import engines, result
from tests.unit.reporting.runs import run, verdict

SWEEP = """() => {
    const over = document.querySelector("#curve .u-over");
    const { left, top, width, height } = over.getBoundingClientRect();
    const told = () => document.querySelector("#curve .picked strong")?.textContent ?? "";
    const move = (kind, x, y) => over.dispatchEvent(
        new MouseEvent(kind, { clientX: left + x, clientY: top + y, bubbles: true }));
    for (let x = 0; x < width; x += 15) {
        for (let y = 0; y < height; y += 15) {
            move("mousemove", x, y);
            const first = told();
            if (first) {
                move("mouseleave", x, y);
                const left = told();
                move("click", x, y);
                move("mouseleave", x, y);
                return [first, left, told()];
            }
        }
    }
}"""
"""Points at a chart till a plan is found, leaves it, and clicks there: what is told each time."""
PRESSED = "#curve .legend button[aria-pressed=true]"


def test_plans_tell_what_they_keep_to_the_keyboard(look: Look, page_of: PageOf) -> None:
    page = look(page_of("demo")).page
    chart = page.locator("#curve .scatter")
    picked = page.locator("#curve .picked")
    assert "Point at a plan" in picked.inner_text()
    chart.focus()
    seen = set()
    for _ in range(30):
        chart.press("ArrowRight")
        seen.add(picked.locator("strong").inner_text())
    assert {"0 nodes kept", "FP32"} <= seen
    many = next(text for text in seen if text.split()[0] not in ("0", "1", "FP32"))
    while picked.locator("strong").inner_text() != many:
        chart.press("ArrowLeft")
    assert picked.locator("li").count() == int(many.split()[0])
    chart.press("Escape")
    assert "Point at a plan" in picked.inner_text()


def test_the_mouse_finds_plans_on_other_axes(look: Look, page_of: PageOf) -> None:
    page = look(page_of("demo"), width=1200).page
    page.get_by_label("Across:").select_option("nodes kept")
    page.get_by_label("Up:").select_option("error, held-out samples")
    found = page.evaluate(SWEEP)
    assert "nodes kept" in found[0]
    assert found[1:] == ["", found[0]]
    shown = page.locator(PRESSED).count()
    page.locator(PRESSED).first.click()
    assert page.locator(PRESSED).count() == shown - 1


def test_a_plan_of_the_table_is_shown(look: Look, page_of: PageOf) -> None:
    page = look(page_of("large")).page
    page.get_by_text("as a table").click()
    button = page.locator("#curve details tbody button").nth(40)
    button.click()
    picked = page.locator("#curve .picked")
    assert picked.locator("strong").inner_text() == button.inner_text()
    assert picked.locator("li").count() == 400
    assert "more" in picked.inner_text()


def test_a_mark_says_by_what_a_plan_passes(look: Look, page_of: PageOf) -> None:
    page = look(page_of("ladder")).page
    assert (
        "Allowed: rel max ≤ 0.0001. Filled marks pass"
        in page.locator("#curve .picked").inner_text()
    )
    page.get_by_text("as a table").click()
    rows = page.locator("#curve details tbody tr").all_inner_texts()
    (own,) = (row for row in rows if "this plan" in row)
    assert "yes" in own.split()


@pytest.mark.parametrize("kind", ["engine", "large"])
def test_layers_of_each_engine_are_shown(kind: str, look: Look, page_of: PageOf) -> None:
    page = look(page_of(kind), dark=True).page
    layers = page.locator("#engine .tall")
    select = page.get_by_label("Engine:")
    for name in select.locator("option").all_inner_texts():
        select.select_option(name)
        assert layers.get_by_role("region").get_attribute("aria-label") == (
            f"Layers of {name.removesuffix(' (delivered)')}"
        )
        assert layers.locator("tbody tr").count()
    chart = page.locator("#engine .scatter")
    chart.focus()
    chart.press("ArrowRight")
    assert page.locator("#engine .told").inner_text().startswith("Build ")


def test_without_measures_there_is_a_table_and_no_chart(look: Look, tmp_path: Path) -> None:
    wrong = result("FP32, TF32 off", 1, 1.0, verdict=verdict(passed=False), latency=None)
    made = engines(results=(wrong,), rounds=(), emulated=None)
    nothing = {"plan": None, "curve": None, "search": None, "baseline": None, "worth": None}
    write_run(tmp_path, run(**nothing, verdict=verdict(passed=False), engines=made))
    section = look(write_page(tmp_path)).page.locator("#curve")
    assert section.locator("tbody tr").count() == 1
    assert section.locator("canvas").count() == 0
    assert section.locator(".caution").count() == 0
