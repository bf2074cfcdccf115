"""The graph in a browser: what is folded and unfolded, searched, walked through by key."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page

from tests.browser.conftest import Look, PageOf
from tests.browser.folders import FUSED

MODEL = "halfwise.graph.graphModel(halfwise.data('graph'))"
SCENE = f"""(open) => {{
    const graph = {MODEL};
    const {{ items, edges }} = halfwise.graph.folded(graph, new Set(open));
    return {{ items, edges: edges.map(({{ from, to }}) => [from, to]) }};
}}"""


def folded_here(data: Mapping[str, Any], opened: set[int]) -> tuple[set[str], set[tuple[str, str]]]:
    """Return which items are seen, and which of them an edge joins, by the data alone."""
    parents = data["boxes"]["parents"]

    def seen(node: int) -> str:
        path, box = [], data["place"][node]
        while box >= 0:
            path.append(box)
            box = parents[box]
        return next((f"b{box}" for box in reversed(path) if box not in opened), f"n{node}")

    maker = {t: node for node, tensors in enumerate(data["gives"]) for t in tensors}
    constants, bodies = set(data["constants"]), dict(data["bodies"])
    joined = set()
    for node, tensors in enumerate(data["reads"]):
        sources = [maker.get(t) for t in tensors if t not in constants]
        if node in bodies and not any(source is not None for source in sources):
            joined.add((seen(bodies[node]), seen(node)))
        joined |= {(seen(source), seen(node)) for source in sources if source is not None}
        joined |= {(f"t{t}", seen(node)) for t in tensors if t in data["inputs"]}
    joined |= {(seen(maker[t]), f"o{t}") for t in data["outputs"] if t in maker}
    joined = {(a, b) for a, b in joined if a != b}
    nodes = {seen(node) for node in range(len(data["ops"]))}
    return nodes | {end for edge in joined for end in edge}, joined


@pytest.mark.parametrize("width", [420, 1600])
def test_that_the_graph_opens_at_the_first_kept_node(
    width: int, look: Look, page_of: PageOf
) -> None:
    page = look(page_of("demo"), width=width).page
    canvas, item = page.locator(".graph-canvas"), page.locator('.graph-canvas .item[tabindex="0"]')
    assert "◆" in (item.text_content() or "")
    around, inside = canvas.bounding_box(), item.bounding_box()
    assert around is not None
    assert inside is not None
    assert (
        around["y"] < inside["y"] < inside["y"] + inside["height"] < around["y"] + around["height"]
    )
    assert page.evaluate("scrollY") == 0


@pytest.mark.parametrize("kind", ["demo", "hostile"])
def test_no_node_is_lost_and_edges_join_what_their_nodes_are_in(
    kind: str, look: Look, page_of: PageOf
) -> None:
    page = look(page_of(kind)).page
    data = page.evaluate("halfwise.data('graph')")
    draws = np.random.default_rng(0).random(len(data["boxes"]["labels"]))
    for share in (0.0, 0.3, 0.8, 1.0):
        opened = {box for box, drawn in enumerate(draws.tolist()) if drawn < share}
        found = page.evaluate(SCENE, sorted(opened))
        items, edges = folded_here(data, opened)
        assert set(found["items"]) == items
        assert len(found["items"]) == len(items)
        assert {(a, b) for a, b in found["edges"]} == edges
        assert len(found["edges"]) == len(edges)
    # With all open, every node stands for itself.
    assert {item for item in items if item[0] == "n"} == {f"n{i}" for i in range(len(data["ops"]))}


def items(page: Page) -> list[str]:
    found = page.locator("#graph .item").evaluate_all("all => all.map((e) => e.dataset.key)")
    return list(map(str, found))


def test_a_box_is_unfolded_and_folded_by_click_and_by_key(look: Look, page_of: PageOf) -> None:
    page = look(page_of("demo")).page
    before = items(page)
    summed = page.get_by_role("region", name="Selected").inner_text()
    assert all(word in summed for word in ("Whole graph", "operators", "kept"))
    box = page.locator("#graph .item.box").first
    key = box.get_attribute("data-key")
    assert key
    box.click()
    assert key not in items(page)
    assert len(items(page)) > len(before)
    page.locator(f'#graph .cluster[data-key="c{key[1:]}"]').press("Enter")
    assert items(page) == before
    assert page.evaluate("document.activeElement.dataset.key") == key
    page.keyboard.press("Enter")
    assert key not in items(page)
    page.get_by_role("button", name="Fold all").click()
    assert not page.locator("#graph .cluster").count()


def test_a_node_is_found_and_its_surroundings_are_walked(look: Look, page_of: PageOf) -> None:
    page = look(page_of("demo")).page
    page.get_by_label("Find a node, operator or tensor").fill("blocks.2/norm1/pow")
    page.keyboard.press("Enter")
    selected = page.locator("#graph .item.selected")
    assert selected.locator("title").first.text_content() == "/blocks.2/norm1/Pow"
    few = items(page)
    panel = page.get_by_role("region", name="Selected")
    assert "/blocks.2/norm1/Pow" in panel.inner_text()
    page.locator("#graph .more").first.click()
    assert len(items(page)) > len(few)
    before = items(page)
    page.locator("#graph .item:has(.more)").first.press("m")
    assert len(items(page)) > len(before)
    grown = selected.locator("title").first.text_content()
    selected.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.key") != selected.get_attribute("data-key")
    page.keyboard.press("+")
    assert "3 steps" in page.locator(".graph-tools").inner_text()
    page.get_by_role("button", name="In the whole graph").click()
    assert selected.locator("title").first.text_content() == grown
    assert page.locator("#graph .item.box").count()


def test_a_link_shows_a_node_and_says_where_there_is_none(look: Look, page_of: PageOf) -> None:
    page = look(page_of("demo")).page
    page.evaluate("halfwise.open('graph', '/blocks.0/norm2/Sqrt')")
    panel = page.get_by_role("region", name="Selected")
    panel.get_by_text("/blocks.0/norm2/Sqrt", exact=True).wait_for()
    page.evaluate("halfwise.open('graph', 'gone')")
    page.get_by_text("The graph shown has no gone").wait_for()


AROUND = """(box) => {
    const { left, right, top, bottom } = box.querySelector("rect").getBoundingClientRect();
    const isIn = (item) => {
        const own = item.querySelector(".back").getBoundingClientRect();
        return own.left >= left && own.right <= right && own.top >= top && own.bottom <= bottom;
    };
    return [...document.querySelectorAll("#graph .item.node")].filter(isIn)
        .map((item) => item.querySelector("title").textContent);
}"""
"""The nodes inside a box."""


def test_a_layer_of_the_engine_is_a_box_around_all_its_nodes(look: Look, page_of: PageOf) -> None:
    page = look(page_of("engine")).page
    layer = page.locator("#graph .cluster.layer")
    while page.locator("#graph .item.box").count():
        page.locator("#graph .item.box").first.click()
    assert layer.evaluate(AROUND) == [*FUSED]
    page.evaluate("(node) => halfwise.open('graph', node)", FUSED[0])
    page.get_by_role("region", name="Selected").get_by_text("Around it").wait_for()
    assert layer.evaluate(AROUND) == [*FUSED]
    page.get_by_role("button", name="Fewer steps").click()
    assert layer.evaluate(AROUND) == [*FUSED[:2]]
    assert "(2 of 3 nodes)" in (layer.locator("title").text_content() or "")
    assert page.locator("#graph .graph-legend .key.layer").count() == 1


def test_kept_nodes_casts_and_layers_are_told_apart_without_colour(
    look: Look, page_of: PageOf
) -> None:
    page = look(page_of("engine")).page
    data = page.evaluate("halfwise.data('graph')")
    kept = [f for f in data["facts"].values() if f.get("told", [["", ""]])[0][0] == "kept"]
    assert kept
    assert data["layers"]
    names = page.evaluate(f"{MODEL}.layers.map((layer) => layer.name)")
    assert all(names)
    while page.locator("#graph .item.box").count():
        page.locator("#graph .item.box").first.click()
    assert page.locator("#graph .item.kept").count() == len(kept)
    words = page.locator("#graph .item.kept").first.text_content() or ""
    assert ("◆ kept" in words, "FP32" in words) == (True, True)
    for choice in page.locator("#graph select option").all_text_contents():
        page.locator("#graph select").select_option(choice)
        assert page.locator("#graph .item .stripe").count()
        assert page.locator("#graph .graph-legend .key").count()
