"""The sections of the page, in order; those without content are omitted."""

from collections.abc import Callable

from halfwise.page.section import Section
from halfwise.page.sections.causes import causes
from halfwise.page.sections.curve import curve
from halfwise.page.sections.depth import depth
from halfwise.page.sections.details import details
from halfwise.page.sections.engine import engine
from halfwise.page.sections.graph import graph
from halfwise.page.sections.kept import kept
from halfwise.page.sections.provenance import provenance
from halfwise.page.sections.samples import samples
from halfwise.page.sections.verdict import verdict
from halfwise.page.stored import Stored

SECTIONS: tuple[Callable[[Stored], Section | None], ...] = (
    verdict,
    curve,
    causes,
    graph,
    depth,
    kept,
    samples,
    engine,
    details,
    provenance,
)
