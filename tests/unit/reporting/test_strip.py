import re
from xml.etree import ElementTree as ET

import pytest

from halfwise.records import Detail, GuardKind, Histogram, Observation, Plan
from halfwise.reporting.strip import bars, strip
from tests.unit.page.test_document import NASTY
from tests.unit.reporting.runs import guard, kept, observation, observations, plan, run

SVG = "{http://www.w3.org/2000/svg}"


def seen(tensor: str, largest: float, counts: tuple[int, ...], first: int) -> Observation:
    detail = Detail(
        smallest_nonzero=2.0**first,
        overflow=0.0,
        flush=0.0,
        subnormal=0.0,
        histogram=Histogram(first=first, counts=counts, zeros=0),
        samples=1,
    )
    return observation(tensor, f"{tensor}_node", largest, detail=detail)


def drawn(*tensors: Observation, before: tuple[Observation, ...] = (), **changed: object) -> str:
    values = {"guards": (), "plan": plan(()), **changed}
    picture = strip(run(**values), observations(tensors=tensors, before=before))
    assert picture is not None
    return picture


def marks(picture: str) -> list[list[str]]:
    """The places across of the lines of each path of a picture, without the limits."""
    paths = re.findall(r'<path d="([^"]*)" stroke="#\w+" stroke-width', picture)
    return [re.findall(r"M([\d.]+) ", path) for path in paths]


def test_a_bar_spans_a_tensor_without_its_smallest_values() -> None:
    (bar,) = bars(observations(tensors=(seen("a", 12.0, (5, 0, 495, 500), first=0),)))
    low, high = bar.now or (0.0, 0.0)
    assert low == 2
    assert 2**high == pytest.approx(12)


def test_what_is_not_finite_has_no_end_and_zeros_have_no_bar() -> None:
    tensors = observation("a", "n", 4.0, nonfinite=3), observation("b", "m", 0.0, detail=None)
    first, second = bars(observations(tensors=tensors))
    assert first.now is not None
    assert first.now[1] == float("inf")
    assert second.now is None


def test_a_fault_is_marked_where_it_is_beyond_the_limit() -> None:
    found = (guard("b_node", "overflow", tensor="b", nodes=("b_node",)),)
    picture = drawn(
        seen("a", 4.0, (9,), first=2),
        seen("b", 1e6, (9,), first=18),
        guards=found,
        plan=plan((kept("b_node", guard="overflow"),)),
    )
    before, now, beyond, fault = marks(picture)
    assert not before
    assert beyond == fault == now[1:]
    assert ">b_node: cause, values beyond the range, at 1 node<" in picture


def test_before_and_after_repairs_are_drawn_in_one_place() -> None:
    tensors = (seen("a", 4.0, (9,), first=2),)
    picture = drawn(*tensors, before=(seen("a", 1e6, (9,), first=18),))
    before, now, beyond = marks(picture)
    assert before == now == beyond
    assert "before repairs" in picture
    assert "before repairs" not in drawn(*tensors)


def test_what_repairs_removed_lies_between_what_is_left() -> None:
    left = tuple(seen(name, 4.0, (9,), first=2) for name in "acd")
    gone = tuple(seen(name, 1e6, (9,), first=18) for name in ("a", "b", "d", "e"))
    order = [bar.names[0] for bar in bars(observations(tensors=left, before=gone))]
    assert order.index("a") < order.index("b") < order.index("d") < order.index("e")


@pytest.mark.parametrize("size", [1, 3, 71, 5000])
def test_it_is_a_small_picture_that_runs_nothing(size: int) -> None:
    tensors = tuple(seen(f"t{i}", 2.0 ** (i % 60 - 30), (9,), first=-40) for i in range(size))
    kinds: tuple[GuardKind, ...] = ("overflow", "square", "headroom", "eps", "sum", "integer")
    found = tuple(
        guard(f"{NASTY}{i}_node", kind, tensor=f"t{i % size}") for i, kind in enumerate(kinds)
    )
    picture = drawn(*tensors, guards=found, before=tensors)
    assert len(picture.encode()) <= 50_000
    root = ET.fromstring(picture)  # noqa: S314 - our own
    assert root.tag == f"{SVG}svg"
    assert not root.findall(f".//{SVG}script")


def test_a_format_with_the_range_of_fp32_needs_none() -> None:
    bf16: Plan = plan((), low="bf16")
    assert strip(run(guards=(), plan=bf16), observations()) is None
    assert strip(run(), None) is None
    assert strip(run(), observations(tensors=())) is None
