import numpy as np
import pytest

from halfwise.metrics.unvarying import unvarying_hint
from halfwise.records import Criterion

RNG = np.random.default_rng(1)


def outputs(swing, count=8):
    return [{"y": 1 + swing * RNG.normal(size=5)} for _ in range(count)]


@pytest.mark.parametrize(
    ("swing", "criterion", "told"),
    [
        (5e-4, Criterion(), True),
        (0.5, Criterion(), False),
        (1e-3, Criterion(snr_db=40), True),
        (1e-3, Criterion(snr_db=80), False),
        (1e-3, Criterion(max_abs=1e-5), False),
        (1e-3, Criterion(metric="m"), False),
    ],
)
def test_a_constant_that_would_pass_is_told(swing, criterion, told):
    hints = unvarying_hint(criterion, outputs(swing))
    assert len(hints) == told
    assert all("a constant would pass" in hint for hint in hints)


def test_one_output_that_varies_is_enough_to_tell():
    still, moving = outputs(1e-4), outputs(0.5)
    both = [{"y": a["y"], "z": b["y"]} for a, b in zip(still, moving, strict=True)]
    assert unvarying_hint(Criterion(), both) == ()


def test_single_samples_and_ragged_or_integer_outputs_say_nothing():
    assert unvarying_hint(Criterion(), outputs(0.0, count=1)) == ()
    assert unvarying_hint(Criterion(), []) == ()
    assert unvarying_hint(Criterion(), [{"y": np.ones(2)}, {"y": np.ones(3)}]) == ()
    assert unvarying_hint(Criterion(), [{"y": np.arange(4)}, {"y": np.arange(4)[::-1]}]) == ()


def test_empty_and_infinite_outputs_say_nothing():
    for one, other in (
        (np.empty((0, 4)), np.empty((0, 4))),
        (np.full(3, np.inf), -np.full(3, np.inf)),
    ):
        references = [{"y": one.astype(np.float32)}, {"y": other.astype(np.float32)}]
        assert unvarying_hint(Criterion(), references) == ()
