"""MkDocs's hook: links from the docs to other files of the repository lead to its address."""

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(((?:\.\./)+[^)\s]+)\)")


def on_page_markdown(markdown: str, **event: Any) -> str:
    """Return a page of the docs with absolute links to what the site does not have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    home = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["home"]
    folder = (ROOT / "docs" / event["page"].file.src_path).parent

    def link(match: re.Match[str]) -> str:
        file, _, place = match[1].partition("#")
        path = (folder / file).resolve().relative_to(ROOT)
        if path.parts[0] == "docs":
            return match[0]
        return f"]({home}/blob/main/{path}{'#' * bool(place)}{place})"

    return LINK.sub(link, markdown)
