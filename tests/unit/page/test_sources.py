from typing import Any

from halfwise.page.sections import Places
from halfwise.records import NodeName
from tests.unit.page.sections.test_causes import evidence


def test_each_place_is_told_once() -> None:
    places = Places(evidence("gone", "b", "c"))
    asked = [places.of(NodeName(n)) for n in ("gone", "b", "c", "gone", "unknown")]
    assert asked == [0, 1, 1, 0, None]
    data: Any = places.data
    assert [(place["module"], place["line"]) for place in data] == [
        ("blocks.0", 7),
        ("blocks/0", 0),
    ]


def test_without_evidence_nothing_is_known() -> None:
    places = Places(None)
    assert places.of(NodeName("a")) is None
    assert places.data == []
