"""Give the package README.md with absolute links: a package index shows it by itself."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")
PICTURES = (".png", ".svg")


def absolute(text: str, home: str) -> str:
    """Return a page of the repository's root with links below `home`, a GitHub address."""

    def link(match: re.Match[str]) -> str:
        path = match[1]
        kind = "raw" if path.endswith(PICTURES) else "blob"
        return f"]({home}/{kind}/main/{path})"

    return LINK.sub(link, text)


class ReadmeHook(MetadataHookInterface):
    """Hatchling's hook: it fills the dynamic field `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the field."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        home = metadata["urls"]["Homepage"]
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, home)}
