"""A section of the page: what its Python part gives, and what its template and script get."""

from dataclasses import dataclass
from typing import Any, Literal

from halfwise.page.data import Data

Library = Literal["uplot", "dagre"]


@dataclass(frozen=True)
class Section:
    """A section.

    Attributes:
        id: Its anchor. `static/ID.js` and `static/ID.css` are its script and its style, where
            there are such files.
        title: Its heading.
        data: What its script gets, by `halfwise.section(ID, (root, data) => …)`.
        template: File in `templates/` that makes its body from `section` and `stored`; "" for an
            empty one, which the script fills.
        facts: What the template alone needs.
        scripts: Further files in `static/` that its script needs, without `.js`.
        libraries: Vendored libraries that its scripts need.
    """

    id: str
    title: str
    data: Data = None
    template: str = ""
    facts: Any = None
    scripts: tuple[str, ...] = ()
    libraries: tuple[Library, ...] = ()
