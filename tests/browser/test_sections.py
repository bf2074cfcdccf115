"""Every section of the page, used: by mouse, by key, and by the links between them."""

from tests.browser.conftest import Look, PageOf


def test_a_plan_is_pointed_at_and_walked_to(look: Look, page_of: PageOf) -> None:
    page = look(page_of("large"), width=1600).page
    section = page.locator("#curve")
    told = section.locator(".picked")
    assert "Point at a plan" in told.inner_text()
    section.get_by_label("Across:").select_option("predicted cost")
    chart = section.get_by_role("group", name="Arrow keys go")
    chart.focus()
    seen = set()
    for _ in range(5):
        chart.press("ArrowRight")
        seen.add(told.inner_text())
    assert len(seen) == 5
    area = chart.locator(".u-over").bounding_box()
    assert area is not None
    page.mouse.move(area["x"] + area["width"] / 2, area["y"] + area["height"] / 2)
    assert "nodes kept" in told.inner_text()


def test_a_group_of_plans_is_hidden_and_shown(look: Look, page_of: PageOf) -> None:
    page = look(page_of("large")).page
    section = page.locator("#curve")
    section.get_by_label("Across:").select_option("predicted cost")
    chart = section.get_by_role("group", name="Arrow keys go")
    label = chart.get_attribute("aria-label")
    button = section.get_by_role("group", name="Shown").get_by_role("button").first
    button.press("Space")
    assert button.get_attribute("aria-pressed") == "false"
    assert chart.get_attribute("aria-label") != label
    button.press("Space")
    assert chart.get_attribute("aria-label") == label


def test_all_plans_are_a_table_that_shows_them(look: Look, page_of: PageOf) -> None:
    page = look(page_of("large")).page
    section = page.locator("#curve")
    rows = section.locator("details tbody tr")
    assert not rows.first.is_visible()
    section.locator("summary").first.press("Enter")
    assert rows.count() == 50
    section.get_by_role("button", name="Show all").click()
    assert rows.count() > 100
    rows.nth(3).get_by_role("button").click()
    assert rows.nth(3).get_by_role("button").inner_text() in section.locator(".picked").inner_text()
