"""A plot of plans by cost and error."""

import re
from math import inf

import pytest

from halfwise.page.scatter import Spot, scatter

SPOTS = [
    Spot(1.0, inf, "nothing kept"),
    Spot(1.2, 0.5, "7 kept nodes", chosen=True),
    Spot(2.0, 0.0, "<all>"),
]


def places(picture: str) -> list[tuple[float, float]]:
    found = re.findall(r'<circle cx="([-\d.]+)" cy="([-\d.]+)"', picture)
    return [(float(x), float(y)) for x, y in found]


def test_dearer_is_further_right_and_worse_is_higher() -> None:
    picture = scatter(SPOTS, "cost")
    # The chosen one is drawn last, on top.
    worst, exact, chosen = places(picture)
    assert worst[0] < chosen[0] < exact[0]
    assert worst[1] < chosen[1] < exact[1]
    line = re.search(r'<path d="M\d+ ([\d.]+)H', picture)
    assert line is not None
    assert worst[1] < float(line[1]) < chosen[1]


def test_labels_are_escaped() -> None:
    assert "&lt;all&gt;" in scatter(SPOTS, "cost")
    assert "<all>" not in scatter(SPOTS, "cost")


@pytest.mark.parametrize(
    "spots", [[Spot(0.0, 0.0, "a")], [Spot(1.0, 1.0, "a"), Spot(1.0, inf, "b")]]
)
def test_alike_costs_and_errors_are_drawn(spots: list[Spot]) -> None:
    assert len(places(scatter(spots, "ms"))) == len(spots)
