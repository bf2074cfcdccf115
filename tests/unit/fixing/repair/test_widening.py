"""What is changed stays legal."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.case import CPU, Samples
from halfwise.fixing.repair.widening import changed_part, widen
from tests.unit.fixing.repair.test_proof import ids, samples, stream

GENERATOR = np.random.default_rng(0)
SAMPLES: list[dict[str, NDArray[Any]]] = [
    {
        "image": GENERATOR.integers(0, 256, (3, 4)).astype(np.float32),
        "x": GENERATOR.normal(size=5).astype(np.float32),
        "ids": GENERATOR.integers(0, 9000, 5),
        "mask": np.where(GENERATOR.random(5) < 0.5, np.float32(-np.inf), np.float32(0)),
        "empty": np.zeros((0, 2), np.float32),
    }
    for _ in range(5)
]


def test_every_kind_once_and_nothing_invented() -> None:
    given = Samples(tuple("abcde"), lambda i: SAMPLES[i])
    found = list(widen(given, 16))
    assert len(found) == 16
    assert len({one.kind for one in found}) == 10
    for one in found:
        for name in ("ids", "mask"):
            assert any(np.array_equal(one.sample[name], s[name]) for s in SAMPLES)
        assert np.array_equal(one.sample["image"], np.rint(one.sample["image"]))
        for name, array in one.sample.items():
            assert (array.shape, array.dtype) == (
                SAMPLES[0][name].shape,
                SAMPLES[0][name].dtype,
            )
    assert len({one.sample["x"].tobytes() for one in found[:10]}) == 10
    untouched = {s["x"].tobytes() for s in SAMPLES}
    alone = [one.sample["x"].tobytes() in untouched for one in found[10:]]
    assert alone == [True, False] * 3
    again = list(widen(given, 16))
    for one, other in zip(found, again, strict=True):
        assert np.array_equal(one.sample["x"], other.sample["x"])


def test_both_parts_take_what_is_in_front_of_the_change() -> None:
    before, after = stream(0, table=True), stream(0, 4, table=True)
    found = changed_part(before, after, ids(), runtime=CPU)
    assert found is not None
    one, other, given = found
    assert [v.name for v in one.graph.inputs] == [v.name for v in other.graph.inputs]
    assert {name.partition("::")[0] for name in given[0]} == {"Gather_0_out", "ids"}
    assert "Gather" not in {node.op_type for node in one.nodes()}


def test_there_is_none_where_nothing_is_shared_or_inputs_can_be_widened() -> None:
    assert changed_part(stream(0), stream(0, 4), samples(), runtime=CPU) is None
    same = stream(0, table=True)
    assert changed_part(same, same, ids(), runtime=CPU) is None
