"""Every node that a plan keeps, one by one: the terminal groups them."""

from collections.abc import Iterator

from halfwise.page.data import Data
from halfwise.page.section import Section
from halfwise.page.stored import Stored
from halfwise.records import KeptNode
from halfwise.reporting.guards import CAUSES
from halfwise.reporting.precision import WORDS
from halfwise.reporting.remarks import in_words
from halfwise.wording import capital


def kept(stored: Stored) -> Section | None:
    """Return the section of kept nodes, and of those excluded from INT8."""
    plan = in_words(stored.run).plan
    nodes = () if plan is None else (*plan.keep, *plan.left_out)
    rows = [list(cells(node)) for node in nodes]
    return Section("kept", "Kept nodes", {"rows": rows}) if rows else None


def cells(node: KeptNode) -> Iterator[Data]:
    """Yield name, operator, type, effect when low, and the error without it over the limit."""
    yield node.node
    yield node.op
    yield WORDS[node.precision]
    yield node.reason if node.guard is None else capital(CAUSES[node.guard])
    yield node.error_without
