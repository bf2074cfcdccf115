"""The documentation shows what the commands print, and the README stays short."""

import re

import pytest
import yaml

from tools import readme

MOST_BYTES = {"README.md": 8_000, "CONTRIBUTING.md": 6_000, "CHANGELOG.md": 7_500}
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)")
PAGES = sorted({*readme.ROOT.glob("*.md"), *readme.ROOT.glob("*/**/*.md")})
PAGES = [
    p for p in PAGES if not any(part.startswith(".") for part in p.relative_to(readme.ROOT).parts)
]


def block(page, name):
    text = page.read_text(encoding="utf-8")
    return text.split(f"<!-- begin {name} -->\n")[1].split(f"\n<!-- end {name} -->")[0]


def anchors(page) -> set[str]:
    """Names of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


@pytest.mark.parametrize(("name", "most"), MOST_BYTES.items())
def test_a_page_that_everybody_reads_is_short(name, most):
    assert len((readme.ROOT / name).read_bytes()) <= most


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(readme.ROOT)))
def test_links_lead_somewhere(page):
    for path, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not anchor or target.suffix != ".md" or anchor[1:] in anchors(target), path + anchor


def test_the_report_is_that_of_the_demo():
    printed = readme.report()
    assert "All 258 compute nodes in FP16" in printed
    assert readme.plain(block(readme.README, "report")) == readme.plain(printed)


def test_the_engines_are_those_of_the_recorded_run():
    assert block(readme.ENGINES, "engines") == readme.engines()


def test_the_commands_and_options_are_those_of_the_command_line():
    assert block(readme.COMMANDS, "commands") == readme.commands(), "run make readme"


def test_the_chinese_readme_has_the_commands_of_the_english_one():
    def blocks(name):
        text = (readme.ROOT / name).read_text(encoding="utf-8")
        return re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)

    assert set(blocks("README.zh.md")) == set(blocks("README.md"))


def test_every_page_of_the_site_is_there():
    site = yaml.safe_load((readme.ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    pages = re.findall(r"[\w-]+\.md", str(site["nav"]))
    assert all((readme.ROOT / "docs" / page).is_file() for page in pages)
    assert len(set(pages)) == len(pages) >= 30
