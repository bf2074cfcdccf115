import ml_dtypes
import numpy as np
import pytest

from halfwise.errors import CaseError
from halfwise.inputs.spec import InputSpec
from halfwise.inputs.synthetic import random_samples


def spec(name, dtype, *shape):
    return InputSpec(name, np.dtype(dtype), shape)


SPECS = [
    spec("x", np.float32, "n", 3, 50, 50),
    spec("ids", np.int64, 1, 1000),
    spec("pixels", np.uint8, 1000),
    spec("mask", np.bool_, 1000),
    spec("half", ml_dtypes.bfloat16, None),
    spec("scale", np.float32),
]


def test_samples_fit_the_model():
    sample = random_samples(SPECS).samples[0]
    assert [a.dtype for a in sample.values()] == [s.dtype for s in SPECS]
    assert [a.shape for a in sample.values()] == [
        (1, 3, 50, 50),
        (1, 1000),
        (1000,),
        (1000,),
        (1,),
        (),
    ]


def test_values_are_in_their_ranges():
    sample = random_samples(SPECS, seed=1).samples[0]
    assert abs(sample["x"].std() - 1) < 0.05
    assert set(np.unique(sample["ids"])) == {0, 1}
    assert sample["pixels"].max() > 200
    assert 300 < sample["mask"].sum() < 700


def test_a_seed_gives_the_same_samples_again_and_each_is_another():
    samples = random_samples(SPECS, count=3, seed=5).samples
    again = random_samples(SPECS, count=3, seed=5).samples
    assert samples.ids == ("random[0]", "random[1]", "random[2]")
    np.testing.assert_array_equal(samples[2]["x"], again[2]["x"])
    assert not np.array_equal(samples[1]["x"], samples[2]["x"])
    other = random_samples(SPECS, seed=6).samples
    assert not np.array_equal(samples[0]["x"], other[0]["x"])


def test_notes_warn_and_tell_of_dynamic_axes():
    notes = random_samples(SPECS, count=2).notes
    assert notes[0].startswith("warning: random inputs (2 samples, seed 0: x 1×3×50×50, ")
    assert "dynamic axes have length 1" in notes
    assert len(random_samples([spec("x", np.float32, 1)]).notes) == 1


def test_text_has_no_random_data():
    with pytest.raises(CaseError, match="'t' has dtype object, for which there is no random data"):
        random_samples([spec("t", object, 1)])


@pytest.mark.parametrize("shape", [(1 << 62, 4), (1 << 63,), (1,) * 2000, (2,) * 70])
def test_a_shape_that_no_array_has_is_told(shape):
    with pytest.raises(CaseError, match="'x' has a shape that no array has"):
        random_samples([spec("x", np.float32, *shape)])
