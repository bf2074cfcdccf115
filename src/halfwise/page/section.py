"""A section of the page: the data that Python gives its template and script."""

from dataclasses import dataclass
from typing import Any, Literal

from halfwise.page.data import Data

Library = Literal["uplot", "dagre"]


@dataclass(frozen=True)
class Section:
    """A section.

    Attributes:
        id: Its anchor. `static/ID.js` and `static/ID.css` are its script and its style, if these
            files exist.
        title: Its heading.
        data: The data that its script receives, by `halfwise.section(ID, (root, data) => …)`.
        template: File in `templates/` that makes its body from `section` and `stored`; "" for an
            empty one, which the script fills.
        facts: Values that only the template needs.
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
