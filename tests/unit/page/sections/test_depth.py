from math import inf
from typing import Any

from halfwise.page.sections import depth
from halfwise.records import Followed, Growth, NodeName, Origin
from halfwise.reporting.nodes import grown_with
from tests.unit.page.test_document import stored
from tests.unit.reporting.runs import run


def test_the_error_after_each_node_is_there_with_where_it_is_born() -> None:
    names = tuple(map(NodeName, ("a", "ab")))
    growth = tuple(
        Growth(node=name, depth=i + 1, error=error, inherited=i * 1e-3)
        for i, (name, error) in enumerate(zip(names, (1.23456e-3, inf), strict=True))
    )
    origin = Origin(node=names[1], kept=names, error=0.2)
    followed = Followed(kept=names[:1], error=2.0, tried=(), origin=origin, accumulates=False)
    section = depth(stored(growth=growth, followed=followed))
    assert section is not None
    data: Any = section.data
    assert data["names"] == [0, "a", 1, "b"]
    assert (data["error"], data["inherited"]) == ([0.001235, inf], [0.0, 0.001])
    assert data["origin"] == "ab"
    assert data["grown"] == grown_with(run(followed=followed))
    assert "starts" in data["label"]
    grows = origin.model_copy(update={"read": 0.01, "made": 0.2})
    section = depth(stored(growth=growth, followed=followed.model_copy(update={"origin": grows})))
    assert section is not None
    data = section.data
    assert "grows" in data["label"]


def test_a_run_that_measured_none_has_no_such_section() -> None:
    assert depth(stored(growth=())) is None
