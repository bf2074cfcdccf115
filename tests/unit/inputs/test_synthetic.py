import ml_dtypes
import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.preprocessing import StandardScaler

from halfwise.case import Samples
from halfwise.errors import CaseError
from halfwise.inputs.fitting import InputSpec
from halfwise.inputs.recorded import judge_inputs, random_samples
from halfwise.reporting.remarks import note_text


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
    sample = random_samples(SPECS).samples[0]
    assert abs(sample["x"].std() - 1) < 0.05
    assert set(np.unique(sample["ids"])) == {0, 1}
    assert sample["pixels"].max() > 200
    assert 300 < sample["mask"].sum() < 700


def test_samples_are_the_same_again_and_each_is_another():
    samples = random_samples(SPECS, count=3).samples
    again = random_samples(SPECS, count=3).samples
    assert samples.ids == ("random[0]", "random[1]", "random[2]")
    np.testing.assert_array_equal(samples[2]["x"], again[2]["x"])
    assert not np.array_equal(samples[1]["x"], samples[2]["x"])


def test_notes_warn_and_tell_of_dynamic_axes():
    notes = [*map(note_text, random_samples(SPECS, count=2).notes)]
    assert notes[0].startswith("warning: random inputs (2 samples: x 1×3×50×50, ")
    assert "dynamic axes have length 1" in notes
    assert len(random_samples([spec("x", np.float32, 1)]).notes) == 1


def test_text_has_no_random_data():
    with pytest.raises(CaseError, match="'t' has dtype object; random data is available for"):
        random_samples([spec("t", object, 1)])


@pytest.mark.parametrize("shape", [(1 << 62, 4), (1 << 63,), (1,) * 2000, (2,) * 70])
def test_a_shape_that_no_array_has_is_told(shape):
    with pytest.raises(CaseError, match="'x' has an impossible shape"):
        random_samples([spec("x", np.float32, *shape)])


RNG = np.random.default_rng(0)


def judged(**inputs):
    """Return the kinds of what looks made up, and whether the data look real."""
    arrays = {name: [np.asarray(a) for a in given] for name, given in inputs.items()}
    count = len(next(iter(arrays.values())))
    samples = Samples(
        tuple(str(i) for i in range(count)), lambda i: {name: a[i] for name, a in arrays.items()}
    )
    specs = [InputSpec(name, a[0].dtype, (None,) * a[0].ndim) for name, a in arrays.items()]
    made_up, real = judge_inputs(samples, specs)
    return {found.input: found.kind for found in made_up}, real


def normalised(a):
    return (a - a.mean()) / a.std()


def smooth_image(side=64):
    """An image with the 1/f spectrum of natural scenes, normally distributed."""
    f = np.hypot(*np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side))) + 1 / side
    noise = np.fft.fft2(RNG.standard_normal((3, side, side)))
    return normalised(np.fft.ifft2(noise / f).real)[None]


def ranks(a):
    """Equalise the histogram: uniform in [0, 1)."""
    return np.argsort(np.argsort(a.ravel())).reshape(a.shape) / a.size


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(1, 3, 32, 32), (1, 512), (2048,)])
def test_standard_normal_noise_is_found(dtype, shape):
    noise = [RNG.standard_normal(shape).astype(dtype) for _ in range(8)]
    assert judged(x=noise) == ({"x": "normal"}, False)


@pytest.mark.parametrize(
    "draw",
    [
        RNG.random,
        lambda shape: RNG.uniform(-1, 1, shape),
        lambda shape: RNG.integers(0, 256, shape),
        lambda shape: RNG.integers(0, 256, shape) / 255,
    ],
)
def test_uniform_noise_is_found(draw):
    noise = [draw((1, 3, 24, 24)).astype(np.float32) for _ in range(8)]
    assert judged(x=noise) == ({"x": "uniform"}, False)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.5])
def test_constant_floats_are_found(value):
    assert judged(x=[np.full((16, 32), value)]) == ({"x": "constant"}, False)


DIGITS = load_digits().images[:, None]
SPECTRA = [
    np.exp(-((np.linspace(0, 20, 512) - RNG.uniform(3, 17)) ** 2)) + 0.05 * RNG.standard_normal(512)
    for _ in range(8)
]
REAL = {
    "digits": DIGITS,
    "normalised digits": normalised(DIGITS),
    "scaled digits": StandardScaler().fit_transform(DIGITS.reshape(-1, 64))[:, None],
    "scaled table": [StandardScaler().fit_transform(load_breast_cancer().data)],
    "normalised images": [smooth_image() for _ in range(4)],
    "equalised images": [ranks(smooth_image()) for _ in range(4)],
    "patches": [np.ascontiguousarray(smooth_image()[..., :8, :8]) for _ in range(16)],
    "large image": [smooth_image(512)],
    "channels last": [smooth_image().transpose(0, 2, 3, 1)],
    "spectra": SPECTRA,
    "normalised spectra": [normalised(s) for s in SPECTRA],
    "one-hot": [np.eye(21)[RNG.integers(0, 21, 100)]],
    "ragged": [smooth_image(32)[..., :w] for w in (20, 30, 32)],
    "too few": [RNG.standard_normal(15) for _ in range(17)],
}


@pytest.mark.parametrize("name", REAL)
def test_real_data_is_not_suspected(name):
    assert judged(x=REAL[name]) == ({}, True)


def test_a_mask_of_ones_beside_real_features_is_not_suspected():
    features = [RNG.standard_normal((1, 64)).cumsum(axis=-1) for _ in range(16)]
    assert judged(x=features, mask=[np.ones((1, 64), np.int64)] * 16) == ({}, True)


def test_rows_of_a_standardised_table_that_correlate_weakly_are_not_suspected():
    shared, own = RNG.standard_normal((300, 1)), RNG.standard_normal((300, 20))
    rows = normalised(0.4 * shared + own)
    assert judged(x=rows[:, None].astype(np.float32)) == ({}, True)


def test_tokens_with_a_mask_of_ones_are_not_suspected():
    tokens = [RNG.integers(0, 30000, (1, 128)) for _ in range(4)]
    ones = [np.ones((1, 128))] * 4
    ones = [one.astype(np.int64) for one in ones]
    assert judged(ids=tokens, mask=ones) == ({}, True)
    assert judged(ids=ones, mask=ones) == ({"ids": "constant", "mask": "constant"}, False)
    assert judged(size=[np.array([640, 480])] * 4) == ({}, True)


NOISE = [RNG.standard_normal((1, 4, 32, 32)).astype(np.float32) for _ in range(4)]
IMAGE = [smooth_image().astype(np.float32) for _ in range(4)]
ZEROS = [np.zeros((1, 512), np.float32)] * 4
TOKENS = [RNG.integers(0, 30000, (1, 128)) for _ in range(4)]


@pytest.mark.parametrize(
    ("inputs", "real"),
    [
        ({"left": NOISE, "right": [2 * image for image in NOISE]}, True),
        ({"left": NOISE, "right": NOISE}, False),
        ({"x": NOISE, "state": ZEROS}, False),
        ({"x": IMAGE, "state": ZEROS}, True),
        ({"pixels": NOISE, "ids": TOKENS}, False),
        ({"ids": TOKENS, "weights": ZEROS}, True),
        ({"sample": NOISE, "text": IMAGE}, True),
        ({"sample": NOISE, "time": [np.array([i], np.float32) for i in range(4)]}, False),
        ({"z": NOISE}, True),
        ({"style_z": NOISE, "x": NOISE}, False),
        ({"style_z": NOISE, "x": IMAGE}, True),
        ({"latent_sample": NOISE}, True),
        ({"fuzzy": NOISE}, False),
    ],
)
def test_what_makes_the_data_noise(inputs, real):
    """Noise in each input that could be real; but not in one that is named after it."""
    assert judged(**inputs)[1] is real


@pytest.mark.slow
def test_large_inputs_are_cropped_and_many_samples_thinned():
    loaded = []

    def load(i):
        loaded.append(i)
        return {"x": RNG.standard_normal((1, 2**20)).astype(np.float32)}

    samples = Samples(tuple(str(i) for i in range(100)), load)
    specs = [InputSpec("x", np.dtype(np.float32), (1, 2**20))]
    assert judge_inputs(samples, specs)[1] is False
    assert len(loaded) == 16
    assert (loaded[0], loaded[-1]) == (0, 99)
