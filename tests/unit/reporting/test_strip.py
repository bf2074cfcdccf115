from xml.etree import ElementTree as ET

import pytest

from halfwise.records import Detail, GuardKind, Histogram, Observation, Plan
from halfwise.reporting.strip import as_svg, as_text, strip
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


def made(*tensors: Observation, before: tuple[Observation, ...] = (), **changed: object):
    values = {"guards": (), "plan": plan(()), **changed}
    drawn = strip(run(**values), observations(tensors=tensors, before=before))
    assert drawn is not None
    return drawn


def column(text: str, mark: str = "1") -> str:
    """The column of a mark, from the top."""
    lines = text.splitlines()
    row = next(i for i, line in enumerate(lines) if line.strip().startswith(mark))
    at = lines[row].index(mark)
    return "".join(line[at : at + 1] or " " for line in lines[1:row])


def test_a_bar_spans_a_tensor_without_its_smallest_values() -> None:
    (bar,) = made(seen("a", 12.0, (5, 0, 495, 500), first=0)).bars
    low, high = bar.now or (0.0, 0.0)
    assert low == 2
    assert 2**high == pytest.approx(12)


def test_what_is_not_finite_has_no_end_and_zeros_have_no_bar() -> None:
    first, second = made(
        observation("a", "n", 4.0, nonfinite=3), observation("b", "m", 0.0, detail=None)
    ).bars
    assert first.now is not None
    assert first.now[1] == float("inf")
    assert second.now is None


def test_a_fault_is_marked_where_it_is_beyond_the_limit() -> None:
    found = (guard("b_node", "overflow", tensor="b", nodes=("b_node",)),)
    drawn = made(
        seen("a", 4.0, (9,), first=2),
        seen("b", 1e6, (9,), first=18),
        guards=found,
        plan=plan((kept("b_node", guard="overflow"),)),
    )
    text = as_text(drawn)
    beyond, _, below = column(text).partition("┄")
    assert "█" in beyond
    assert "█" not in below
    assert "1 b_node: cause, values beyond the range, at 1 node" in text


def test_a_long_line_is_cut_behind_the_node() -> None:
    node = "encoder/layers.11/attention/self/query/MatMul"
    found = (guard(node, "cancellation", nodes=(node,)),)
    kept_there = plan((kept(node, guard="cancellation"),))
    drawn = made(seen("a", 4.0, (9,), first=2), guards=found, plan=kept_there)
    last = as_text(drawn).splitlines()[-1]
    assert last.startswith(f"1 {node}: ")
    assert len(last) <= 80


def test_before_and_after_repairs_are_drawn_in_one_place() -> None:
    drawn = made(seen("a", 4.0, (9,), first=2), before=(seen("a", 1e6, (9,), first=18),))
    (bar,) = drawn.bars
    assert bar.now is not None
    assert bar.before is not None
    text = as_text(drawn)
    assert text.index("░") < text.index("65504") < text.index("█")


def test_what_repairs_removed_lies_between_what_is_left() -> None:
    left = tuple(seen(name, 4.0, (9,), first=2) for name in "acd")
    gone = tuple(seen(name, 1e6, (9,), first=18) for name in ("a", "b", "d", "e"))
    drawn = made(*left, before=gone)
    order = [bar.names[0] for bar in drawn.bars]
    assert order.index("a") < order.index("b") < order.index("d") < order.index("e")


@pytest.mark.parametrize("size", [1, 3, 71, 5000])
def test_it_fits_a_screen_and_a_small_file(size: int) -> None:
    tensors = tuple(seen(f"t{i}", 2.0 ** (i % 60 - 30), (9,), first=-40) for i in range(size))
    kinds: tuple[GuardKind, ...] = ("overflow", "square", "headroom", "eps", "sum", "integer")
    found = tuple(
        guard(f"{NASTY}{i}_node", kind, tensor=f"t{i % size}") for i, kind in enumerate(kinds)
    )
    drawn = made(*tensors, guards=found, before=tensors)
    lines = as_text(drawn).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    picture = as_svg(drawn)
    assert len(picture.encode()) <= 50_000
    root = ET.fromstring(picture)  # noqa: S314 - our own
    assert root.tag == f"{SVG}svg"
    assert not root.findall(f".//{SVG}script")


def test_a_format_with_the_range_of_fp32_needs_none() -> None:
    bf16: Plan = plan((), low="bf16")
    assert strip(run(guards=(), plan=bf16), observations()) is None
    assert strip(run(), None) is None
    assert strip(run(), observations(tensors=())) is None
