"""Reports of all kinds of runs in a browser: shown whole, used by mouse and by keyboard."""

import csv
import io
import re
from itertools import pairwise

import pytest

from tests.browser.conftest import Look, PageOf, Seen

KINDS = ("demo", "failed", "ladder", "diagnosis", "engine", "old", "large", "hostile")
NARROW = """() => [...document.querySelectorAll("main *")]
    .filter((e) => e.getBoundingClientRect().right > innerWidth + 1)
    .filter((e) => !e.closest(".scroll, svg, pre"))
    .map((e) => `${e.tagName}.${e.className}`)"""
"""What goes beyond the window, and is in nothing that can be scrolled."""
UNNAMED = """() => [
    ...document.querySelectorAll("button, input, select, a[href], svg[role=img], img")]
    .filter((e) => !(e.textContent.trim() || e.ariaLabel || e.getAttribute("aria-labelledby")
        || e.title || e.alt || e.labels?.length))
    .map((e) => e.outerHTML.slice(0, 100))"""
"""Controls and pictures without a name for a screen reader."""
STOP = """() => {
    const e = document.activeElement;
    if (e === document.body) return null;
    const { left, right, top, bottom } = e.getBoundingClientRect();
    const inside = right > 0 && bottom > 0 && left < innerWidth && top < innerHeight;
    const marked = getComputedStyle(e).outlineStyle !== "none" || e.closest(".graph-canvas");
    return { shown: Boolean(inside && marked), html: e.outerHTML.slice(0, 100) };
}"""
"""What has the focus, and whether that can be seen."""
STOPS = """() => [...document.querySelectorAll(
    "main :is(a[href], button, input, select, summary, [tabindex='0'])")]
    .filter((e) => e.checkVisibility() && e.tabIndex >= 0).length"""
CLICKED = """() => [...document.querySelectorAll("main *")]
    .filter((e) => getComputedStyle(e).cursor === "pointer")
    .filter((e) => !e.closest("button, a, input, select, summary, label, [tabindex]"))
    .map((e) => e.outerHTML.slice(0, 100))"""
"""What invites clicks and cannot be reached by key."""


def saved(seen: Seen, name: str) -> list[list[str]]:
    """Return the rows of a table's CSV file."""
    with seen.page.expect_download() as started:
        seen.page.get_by_role("button", name=f"{name} as CSV", exact=True).click()
    text = started.value.path().read_text(encoding="utf-8")
    return list(csv.reader(io.StringIO(text)))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_cut_off_on_a_phone_and_all_has_a_name(
    kind: str, look: Look, page_of: PageOf
) -> None:
    seen = look(page_of(kind), width=420, dark=kind == "demo")
    page = seen.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    assert page.evaluate(NARROW) == []
    assert page.evaluate(UNNAMED) == []
    assert page.evaluate(CLICKED) == []
    ids = page.eval_on_selector_all("[id]", "all => all.map((e) => e.id)")
    assert len(ids) == len(set(ids))
    levels = page.eval_on_selector_all("h1, h2, h3, h4", "all => all.map((e) => +e.tagName[1])")
    assert all(b - a <= 1 for a, b in pairwise(levels))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "hostile"])
def test_a_page_is_short_before_anything_is_opened(kind: str, look: Look, page_of: PageOf) -> None:
    page = look(page_of(kind), width=1200, folded=True).page
    assert page.evaluate("document.documentElement.scrollHeight") <= 3000
    assert page.locator(".fault[open]").count() == 0
    page.set_viewport_size({"width": 400, "height": 900})
    lines = page.locator(".result > span:last-child").evaluate(
        "(e) => e.getBoundingClientRect().height / parseFloat(getComputedStyle(e).lineHeight)"
    )
    assert round(lines) <= 7


def test_a_link_in_the_contents_unfolds_its_section(look: Look, page_of: PageOf) -> None:
    page = look(page_of("demo"), width=1300, folded=True).page
    kept = page.locator("#kept .body")
    assert not kept.is_visible()
    page.locator(".contents a[href='#kept']").click()
    assert kept.is_visible()


def test_a_table_is_sorted_and_saved(look: Look, page_of: PageOf) -> None:
    seen = look(page_of("demo"))
    name = "Error against FP32"
    table = seen.page.get_by_role("region", name=name, exact=True)
    heading = table.get_by_role("columnheader", name="rel max")
    column = table.locator("tbody td:nth-child(4)")
    before = [float(text) for text in column.all_text_contents()]
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    assert [float(text) for text in column.all_text_contents()] == sorted(before)
    heading.get_by_role("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    assert [float(text) for text in column.all_text_contents()] == sorted(before, reverse=True)
    head, *rows = saved(seen, name)
    assert head[:4] == ["output", "model", "max abs", "rel max"]
    assert [float(row[3]) for row in rows] == before


def test_the_keyboard_reaches_all_and_shows_where_it_is(look: Look, page_of: PageOf) -> None:
    page = look(page_of("failed")).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator(".skip").evaluate("(e) => e.getBoundingClientRect().left") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    stops = 0
    while True:
        page.keyboard.press("Tab")
        found = page.evaluate(STOP)
        if found is None:
            break
        stops += 1
        assert found["shown"], found
    # Of the items in a chart or a graph one is a stop; arrow keys reach the others.
    assert stops >= page.evaluate(STOPS) - 2 > 30


def test_the_search_of_the_graph_works_by_keyboard(look: Look, page_of: PageOf) -> None:
    page = look(page_of("demo")).page
    field = page.get_by_label("Find a node, operator or tensor")
    field.focus()
    page.keyboard.type("norm1/pow")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    second = page.evaluate("document.activeElement.firstChild.textContent")
    page.keyboard.press("Enter")
    panel = page.get_by_role("region", name="Selected")
    assert panel.locator(".where").first.inner_text() == second
    field.focus()
    page.keyboard.press("Escape")
    assert page.locator(".graph-found").is_hidden()


@pytest.mark.parametrize(
    ("kind", "command"), [("ladder", "ladder"), ("diagnosis", "diagnose"), ("demo", "fix")]
)
def test_a_page_is_headed_by_its_command(
    kind: str, command: str, look: Look, page_of: PageOf
) -> None:
    page = look(page_of(kind)).page
    assert page.locator("h1").inner_text().split()[:2] == ["halfwise", command]


def test_a_command_is_copied(look: Look, page_of: PageOf) -> None:
    page = look(page_of("demo")).page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    command = page.locator(".command").first
    button = command.get_by_role("button")
    button.click()
    page.wait_for_function(
        "(button) => button.textContent === 'Copied'", arg=button.element_handle()
    )
    assert page.evaluate("navigator.clipboard.readText()") == command.locator("code").inner_text()


def test_a_command_in_a_sentence_is_copied(look: Look, page_of: PageOf) -> None:
    file = page_of("demo")
    told = "See <code>halfwise fix M --to int8</code> or <code>halfwise lint</code>."
    page = file.with_name("told.html")
    page.write_text(
        file.read_text("utf-8").replace('<p class="about">', f"<p>{told}</p><p>", 1), "utf-8"
    )
    seen = look(page).page
    seen.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = seen.locator("p > code + button")
    button.click()
    assert seen.evaluate("navigator.clipboard.readText()") == "halfwise fix M --to int8"


def test_the_theme_follows_the_system_and_the_button(look: Look, page_of: PageOf) -> None:
    page = look(page_of("demo"), dark=True).page
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Light").click()
    light = page.evaluate(ground)
    assert luminance(light) > 0.8
    assert luminance(dark) < 0.1
    page.emulate_media(color_scheme="light")
    assert page.evaluate(ground) == light
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate(ground) == dark


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_stands_out_from_its_ground(dark: bool, look: Look, page_of: PageOf) -> None:
    """WCAG 2.2, 1.4.3: 4.5 to 1, and 3 to 1 for large text, by the colours as they are drawn."""
    page = look(page_of("failed"), dark=dark).page
    found = page.evaluate(
        """() => [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility()
            && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())).map((e) => {
            let ground = e;
            const colour = (x) => getComputedStyle(x).backgroundColor;
            while (ground.parentElement && colour(ground) === "rgba(0, 0, 0, 0)")
                ground = ground.parentElement;
            const style = getComputedStyle(e);
            const size = parseFloat(style.fontSize);
            return [style.color, colour(ground), size, e.outerHTML.slice(0, 80)];
        })"""
    )
    assert len(found) > 30
    poor = [
        (contrast(ink, ground), text)
        for ink, ground, size, text in found
        if contrast(ink, ground) < (3 if size >= 24 else 4.5)
    ]
    assert poor == []


def test_a_page_prints_on_white_with_all_that_it_says(look: Look, page_of: PageOf) -> None:
    page = look(page_of("demo"), dark=True).page
    page.emulate_media(media="print")
    assert luminance(page.evaluate("getComputedStyle(document.querySelector('main')).color")) < 0.1
    assert not page.get_by_role("button", name="CSV").first.is_visible()
    assert page.pdf().startswith(b"%PDF")


def luminance(colour: str) -> float:
    """Return the relative luminance of `rgb(…)`, in [0, 1] (WCAG 2.2)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, from 1 to 21 (WCAG 2.2)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
