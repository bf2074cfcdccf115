"""Positions and phases survive FP16: as tables, integers, or turns."""

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import TensorProto

from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.fixing.repair.phase import Integers, Phase, is_whole
from halfwise.graph.loading import infer_again
from halfwise.graph.model import Names, Network, Writer
from tests import repairing
from tests.models.positions import grid_sample, patch_columns, resize, rotary
from tests.repairing import Arrays
from tests.unit.graph.sketch import Sketch, f32

FREQUENCIES = f32([1.0, 0.3, 0.1, 1e-3])


def angles(s: Sketch, positions: str, op: str) -> str:
    """Positions [1, n] times frequencies: [1, n, 4], or [1, 4, n] as a product of matrices."""
    if op == "MatMul":
        row = s.op("Unsqueeze", positions, [1], name="row")
        return s.op("MatMul", FREQUENCIES[None, :, None], row, name="angle")
    return s.op(op, s.op("Unsqueeze", positions, [-1], name="column"), FREQUENCIES, name="angle")


def given_positions(op: str) -> Network:
    s = Sketch()
    number = s.op("Cast", s.input("p", [1, "n"], TensorProto.INT64), to=1, name="count")
    angle = angles(s, number, op)
    both = s.op("Concat", angle, angle, axis=-1, name="both")
    return s.network(s.op("Sin", both, name="sine"), s.op("Cos", angle, name="cosine"))


def counted(size: int | str, start: float = 0.0) -> Network:
    """Sines of the positions along an axis of x, plus x."""
    s = Sketch()
    x = s.input("x", [1, size, 4])
    length = s.op("Gather", s.op("Shape", x, name="shape"), np.array(1), name="length")
    every = s.op("Range", np.array(0), length, np.array(1), name="every")
    number = s.op("Add", s.op("Cast", every, to=1, name="count"), f32(start), name="start")
    angle = s.op("Mul", s.op("Unsqueeze", number, [-1], name="column"), FREQUENCIES, name="angle")
    return s.network(s.op("Add", x, s.op("Sin", angle, name="sine"), name="add"))


@given(
    positions=st.lists(st.integers(-(2**23), 2**23), min_size=1, max_size=6),
    op=st.sampled_from(("Mul", "MatMul")),
)
def test_turns(positions: list[int], op: str) -> None:
    network = given_positions(op)
    seen = {"p": np.array([[5, 4000]])}
    repairs = repairing.proposed(network, [seen], Phase())
    assert [(r.nodes, r.numbers) for r in repairs] == [(("angle",), {"turns": 1})]
    after = repairing.repaired(network, repairs, Phase())
    assert not repairing.proposed(after, [seen], Phase())
    for sample in (seen, {"p": np.array([positions])}):
        wide = sample["p"].astype(np.float64)[..., None] * FREQUENCIES.astype(np.float64)
        wide = wide.swapaxes(-1, -2) if op == "MatMul" else wide
        exact = {"sine_out": np.sin(np.concatenate((wide, wide), -1)), "cosine_out": np.cos(wide)}
        before = repairing.error(exact, repairing.run(network, sample))
        assert repairing.error(exact, repairing.run(after, sample)) <= max(2e-6, before)
        assert repairing.error(exact, repairing.run_low(after, sample)) < 4e-3


def test_tables() -> None:
    network = counted(3000, start=0.5)
    sample: Arrays = {"x": f32(np.zeros((1, 3000, 4)))}
    (repair,) = repairing.proposed(network, [sample], Phase())
    assert (repair.nodes, repair.numbers) == (("sine",), {"constant": 1})
    after = repairing.repaired(network, [repair], Phase())
    assert [n.name for n in after.nodes()] == ["add"]
    places = np.arange(3000.0)[:, None] + 0.5
    exact = {"add_out": np.sin(places * FREQUENCIES.astype(np.float64))[None]}
    assert repairing.error(exact, repairing.run(after, sample)) < 1e-7
    assert repairing.error(exact, repairing.run(network, sample)) > 1e-5


@pytest.mark.parametrize("start", [0.0, 0.5])
def test_dynamic_lengths_become_no_table(start: float) -> None:
    network = counted("n", start)
    long: Arrays = {"x": f32(np.zeros((1, 3000, 4)))}
    repairs = repairing.proposed(network, [long], Phase())
    # Halves are no integers: nothing tells how often a turn goes into them but FP32 itself.
    assert [r.numbers for r in repairs] == ([] if start else [{"turns": 1}])
    after = repairing.repaired(network, repairs, Phase())
    for sample in (long, {"x": f32(np.zeros((1, 7, 4)))}):
        assert repairing.error(repairing.run(network, sample), repairing.run(after, sample)) < 3e-4


@pytest.mark.parametrize("make", [rotary, patch_columns])
def test_a_failure_is_repaired(make) -> None:
    network, after, _ = repairing.repair(make(), Phase())
    for sample in repairing.samples_of(make()):
        expected = repairing.run(network, sample)
        assert repairing.error(expected, repairing.run(after, sample)) < 3e-4
        assert repairing.error(expected, repairing.run_low(after, sample)) < 3e-3


@pytest.mark.parametrize("make", [grid_sample, resize])
def test_what_the_format_cannot_hold_stays(make) -> None:
    assert not repairing.repair(make(), Phase())[2]


def test_distances_and_comparisons_are_integers() -> None:
    s = Sketch()
    one, other = (s.input(n, [1, 8], TensorProto.INT32) for n in ("p", "q"))
    a, b = (s.op("Cast", v, to=TensorProto.FLOAT, name=f"count_{v}") for v in (one, other))
    apart = s.op("Sub", s.op("Unsqueeze", a, [-1], name="column"), b, name="apart")
    ends = [
        s.op("Mul", apart, f32(0.1), name="decay"),
        s.op("Less", a, b, name="less"),
        s.op("Cast", s.op("Mul", a, f32(3), name="three"), to=TensorProto.INT32, name="index"),
        s.op("Floor", s.op("Div", a, f32(64), name="quotient"), name="row"),
    ]
    network = s.network(*ends)
    p = np.arange(8, dtype=np.int32)[None] + 30_000
    samples: list[Arrays] = [{"p": p, "q": p[:, ::-1].copy()}]
    repairs = repairing.proposed(network, samples, Phase())
    assert [r.nodes for r in repairs] == [("apart",), ("less",), ("index",), ("row",)]
    after = repairing.repaired(network, repairs, Phase())
    assert not repairing.proposed(after, samples, Phase())
    for given_ in (*samples, {"p": -p, "q": p}):
        expected, low = repairing.run(network, given_), repairing.run_low(after, samples[0])
        assert repairing.error(expected, repairing.run(after, given_)) == 0
    expected = repairing.run(network, samples[0])
    assert repairing.error(expected, low) < 1e-3


def test_angles_that_others_read_stay() -> None:
    for reader in ("Neg", ""):
        s = Sketch()
        number = s.op("Cast", s.input("p", [1, "n"], TensorProto.INT64), to=1, name="count")
        angle = angles(s, number, "Mul")
        outputs = [s.op("Sin", angle, name="sine"), s.op(reader, angle) if reader else angle]
        assert not repairing.proposed(s.network(*outputs), [{"p": np.array([[9, 9000]])}], Phase())


def test_a_repair_of_another_model_is_refused() -> None:
    network, other = counted(3000), counted("n")
    sample: Arrays = {"x": f32(np.zeros((1, 3000, 4)))}
    (table,) = repairing.proposed(network, [sample], Phase())
    (turns,) = repairing.proposed(other, [sample], Phase())
    with pytest.raises(CaseError, match="'phase' at sine does not fit"):
        repairing.repaired(other, [table], Phase())
    with pytest.raises(CaseError, match="'phase' at add does not fit"):
        repairing.repaired(other, [turns.model_copy(update={"nodes": ("add",)})], Phase())


OPS = ("Add", "Sub", "Mul", "Max", "Min", "Neg", "Abs", "Mod", "Floor", "Div", "Unsqueeze")


@given(
    ops=st.lists(st.tuples(st.sampled_from(OPS), st.integers(-9, 9)), min_size=1, max_size=4),
    positions=st.lists(st.integers(-300, 300), min_size=4, max_size=4),
    dtype=st.sampled_from((TensorProto.INT64, TensorProto.INT32)),
)
def test_chains(ops: list[tuple[str, int]], positions: list[int], dtype: int) -> None:
    s = Sketch()
    number = s.op("Cast", s.input("p", [4], dtype), to=TensorProto.FLOAT, name="count")
    x = number
    size = largest = max(map(abs, positions))
    for op, constant in ops:
        other = size if constant % 2 else abs(constant)
        largest = largest * other if op == "Mul" else largest + other
        if op == "Div":
            x = s.op("Floor", s.op("Div", x, f32(constant or 7)))
        elif op == "Mod":
            x = s.op("Mod", x, f32(constant or 7), fmod=1)
        elif op in ("Neg", "Abs", "Floor"):
            x = s.op(op, x)
        elif op == "Unsqueeze":
            x = s.op(op, x, [0])
        else:
            x = s.op(op, x, number if constant % 2 else f32(constant))
    # FP32 holds every integer up to there.
    assume(largest <= 2**24)
    network = s.network(x)
    end = network.graph.outputs[0]
    assert is_whole(end)
    w = Writer(network.model, "end", Names(network.graphs()))
    whole = Integers(w).of(end)
    network.graph.extend(w.made)
    network.graph.outputs.append(whole)
    infer_again(network)
    assert whole.dtype == ir.DataType.INT64
    kind = np.int64 if dtype == TensorProto.INT64 else np.int32
    floats, integers = Session(network.model).run({"p": np.array(positions, kind)}).values()
    np.testing.assert_array_equal(integers, floats)


def test_what_is_not_whole() -> None:
    s = Sketch()
    number = s.op("Cast", s.input("p", [4], TensorProto.INT64), to=TensorProto.FLOAT)
    x = s.input("x", [4])
    ends = [
        s.op("Mul", number, f32(0.5)),
        s.op("Div", number, f32(2)),
        s.op("Floor", s.op("Div", number, f32(0))),
        s.op("Mod", number, f32(0), fmod=1),
        s.op("Add", number, x),
        s.op("Add", number, f32(1e12)),
        s.op("Sqrt", number),
    ]
    assert not any(is_whole(v) for v in s.network(*ends).graph.outputs)
