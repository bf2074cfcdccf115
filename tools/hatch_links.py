"""Give the package its links, and README.md with absolute ones: an index shows it by itself."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")
PICTURES = (".png", ".svg")
URLS = {
    "Homepage": "",
    "Documentation": "/blob/main/docs/tutorial.md",
    "Changelog": "/blob/main/CHANGELOG.md",
    "Issues": "/issues",
}


def absolute(text: str, home: str) -> str:
    """Return a page of the repository's root with links below `home`, a GitHub address."""

    def link(match: re.Match[str]) -> str:
        path = match[1]
        kind = "raw" if path.endswith(PICTURES) else "blob"
        return f"]({home}/{kind}/main/{path})"

    return LINK.sub(link, text)


class LinksHook(MetadataHookInterface):
    """Hatchling's hook: it fills the dynamic fields `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the fields."""
        home = self.config["home"]
        metadata["urls"] = {name: home + path for name, path in URLS.items()}
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, home)}
