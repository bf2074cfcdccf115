"""The pages of failure classes are made from the models; their examples are held in end_to_end."""

import pytest

from tools import failure_classes as pages

FAMILIES = [family for family, _ in pages.families()]


def test_the_index_lists_every_page():
    text = pages.INDEX.read_text(encoding="utf-8")
    assert pages.block(text, "classes") == pages.index(), "run python tools/failure_classes.py"
    listed = {pages.page(family) for family in FAMILIES}
    assert listed == set(pages.FOLDER.glob("*.md"))


@pytest.mark.parametrize(("family", "members"), pages.families(), ids=FAMILIES)
def test_a_page_lists_its_models(family, members):
    text = pages.page(family).read_text(encoding="utf-8")
    listing = pages.listing(members)
    assert pages.block(text, "models") == listing, "run python tools/failure_classes.py"
    assert all(f"## {title}" in text for title in ("Symptom", "Cause", "Repair", "Models"))
