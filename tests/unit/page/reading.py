"""A page as a browser takes it apart: what is text, what is a tag, what would run."""

import json
from html.parser import HTMLParser
from typing import Any


class Read(HTMLParser):
    """The tags of a page with their attributes, and the text in each kind of tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag
        self.texts.setdefault(tag, [])
        if tag in {"script", "style"}:
            self.texts[tag].append("")

    def handle_data(self, data: str) -> None:
        if self._open in {"script", "style"}:
            self.texts[self._open][-1] += data
        elif self._open:
            self.texts[self._open].append(data)

    def handle_endtag(self, _: str) -> None:
        self._open = ""

    def data(self, section: str) -> Any:
        scripts = (attributes for tag, attributes in self.tags if tag == "script")
        at = [attributes.get("id") for attributes in scripts].index(f"data-{section}")
        return json.loads(self.texts["script"][at])
