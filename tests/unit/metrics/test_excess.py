"""One number for all outputs: by hand, and the worst of several outputs."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.errors import CaseError
from halfwise.metrics import Excess, Outputs, totals
from halfwise.records import Criterion
from tests.unit.metrics.pairs import Pairs, float_pairs
from tests.unit.metrics.test_measures import excess, f32, i64, measure


def test_excess_by_hand() -> None:
    pairs: Pairs = [
        (f32([10, 0]), f32([10, 0.05])),
        (f32([0, 0]), f32([0, 0.2])),
    ]
    one = Excess(Criterion(rel_max=0.01), totals([{"y": r} for r, _ in pairs]))
    assert one.update({"y": pairs[0][0]}, {"y": pairs[0][1]}) == pytest.approx(0.5)
    assert one.update({"y": pairs[1][0]}, {"y": pairs[1][1]}) == pytest.approx(2.0)
    assert one.value == one.final() == pytest.approx(2.0)
    # snr_db: the noise of both samples adds up; 40 dB against 10 allow an amplitude of 0.1.
    snr = excess(pairs, Criterion(snr_db=40.0))
    assert snr.final() == pytest.approx(math.hypot(0.05, 0.2) / 0.1)
    actual = measure(pairs).snr_db
    assert snr.final() == pytest.approx(10 ** ((40 - actual) / 20))


@given(float_pairs(special=True), st.permutations(range(5)))
def test_the_verdict_does_not_depend_on_the_order_of_outputs(
    pairs: Pairs, order: list[int]
) -> None:
    names = [f"o{index}" for index in range(len(pairs))]
    reference = {name: pair[0] for name, pair in zip(names, pairs, strict=True)}
    candidate = {name: pair[1] for name, pair in zip(names, pairs, strict=True)}
    shuffled = {names[i]: candidate[names[i]] for i in order if i < len(names)}
    both = [Excess(Criterion(), totals([reference])) for _ in range(2)]
    assert both[0].update(reference, candidate) == both[1].update(reference, shuffled)


def test_several_outputs_the_worst_counts() -> None:
    reference: Outputs = {"a": f32([1, 1]), "b": i64([1, 2])}
    candidate: Outputs = {"a": f32([1, 1.001]), "b": i64([1, 3]), "extra": f32([9])}
    one = Excess(Criterion(), totals([reference]))
    assert one.update(reference, candidate) == pytest.approx(50.0)
    with pytest.raises(CaseError, match="lacks output 'b'"):
        one.update(reference, {"a": candidate["a"]})


def test_the_cosine_bound_rejects_before_the_end() -> None:
    reference = f32([[3, 0], [1, 0]])
    running = Excess(Criterion(cosine=0.99), totals([{"y": row} for row in reference]))
    assert running.update({"y": reference[0]}, {"y": f32([0, 3])}) > 1
