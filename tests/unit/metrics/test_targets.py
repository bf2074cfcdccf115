"""What a candidate is compared with."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from halfwise.errors import CaseError
from halfwise.metrics import (
    BUILT_IN,
    check_labels,
    default_drop,
    metric_loss,
    resolve,
    rises,
    usual,
)
from halfwise.metrics.targets import (
    by_sample,
    by_target,
    class_labels,
    cosine,
    cosine_and_length,
    snr,
)
from halfwise.metrics.task import epe

TRUE = [{"a": np.zeros(2), "b": np.ones(3)}, {"a": np.ones(2), "b": np.ones(3)}]
FOUND = [{"a": np.full(2, 7.0), "b": np.zeros(3)}] * 2
SCORES = np.zeros((2, 4))


def test_each_sample_comes_with_its_label_or_none() -> None:
    assert [label for *_, label in by_sample(TRUE, FOUND, None)] == [None, None]
    assert [label for *_, label in by_sample(TRUE, FOUND, [3, 4])] == [3, 4]
    with pytest.raises(CaseError, match="1 labels for 2 samples"):
        list(by_sample(TRUE, FOUND, [3]))


def test_the_target_is_the_label_or_else_the_reference() -> None:
    own = list(by_target(TRUE, FOUND, None, tuple))
    assert [name for name, *_ in own] == ["a", "b", "a", "b"]
    assert [target.tolist() for _, target, _ in own[:2]] == [[0, 0], [1, 1, 1]]
    (first, _) = by_target(TRUE, FOUND, [[5, 6], [7, 8]], lambda _: ("a",))
    assert first[1].tolist() == [5, 6]
    assert first[2].tolist() == [7, 7]


@pytest.mark.parametrize("label", [[0, 3], np.array([1.0, 2.0]), [[3], [0]]])
def test_classes_of_the_output_are_labels(label):
    assert class_labels(label, SCORES, "y").tolist() == np.ravel(label).tolist()


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ([0, 4], "class 4, but output 'y' has 4 classes: 0 to 3"),
        ([-1, 0], "class -1"),
        ([np.nan, 0], "class nan"),
        ([0, 1, 2], "holds 3"),
        (["a", "b"], "of type <U1"),
    ],
)
def test_other_numbers_are_none(label, told):
    with pytest.raises(CaseError, match=told):
        class_labels(label, SCORES, "y")


STEPS = np.linspace(-4, 4, 2 * 32 * 32).reshape(1, 2, 32, 32)
MASKS = (1 / (1 + np.exp(-STEPS))).astype(np.float32)


@given(st.floats(allow_nan=False))
def test_errors_are_written_without_their_minus(value):
    assert usual("epe", -value) == value
    assert usual("top1", value) == value
    assert math.copysign(1, usual("epe", -0.0)) == 1
    assert math.copysign(1, usual("file.py:function", -0.0)) == 1


def test_what_rises_is_an_error_of_a_worse_flow():
    assert [name for name in BUILT_IN if rises(name)] == ["epe"]
    flow = np.zeros((1, 2, 8, 8), np.float32)
    assert usual("epe", epe([{"y": flow}], [{"y": flow + 3}], None)) > 0
    assert not rises("file.py:function")


@pytest.mark.parametrize("metric", BUILT_IN)
@pytest.mark.parametrize("labelled", [True, False])
def test_no_built_in_metric_is_held_to_nothing_lost(metric, labelled):
    default = default_drop(metric, labelled=labelled)
    assert default is not None
    assert default.drop > 0
    assert default.source


def test_the_scale_of_other_metrics_is_their_authors():
    assert default_drop("score.py:mask-iou", labelled=False) is None


@pytest.mark.parametrize("metric", ["mask-iou", "psnr", "epe"])
def test_rounding_of_the_outputs_alone_is_within_the_default(metric):
    expected, found = {"y": MASKS}, {"y": MASKS.astype(np.float16)}
    function, default = resolve(metric), default_drop(metric, labelled=False)
    assert function is not None
    assert default is not None
    assert 0 <= metric_loss(function, [expected], [found], None) <= default.drop


@pytest.mark.parametrize("label", ["cat", None, {"mask": "cat"}])
def test_text_and_nothing_are_no_labels(label):
    with pytest.raises(CaseError, match="takes numbers as labels, but label 1 is"):
        check_labels("top1", [3, label])


@pytest.mark.parametrize("label", [3, [1, 2], {"mask": np.zeros((2, 2))}])
def test_numbers_are(label):
    check_labels("mask-iou", [label])


def test_a_metric_of_ones_own_takes_what_it_likes():
    check_labels("file.py:score", ["cat", None])
    check_labels(None, ["cat"])


RNG = np.random.default_rng(4)
VECTORS = arrays(np.float64, (3, 5), elements=st.floats(-10, 10)).filter(
    lambda a: bool((np.linalg.norm(a, axis=1) > 1e-3).all())
)


@given(VECTORS, VECTORS)
def test_the_worst_vector_is_that_of_the_definition(target, found):
    expected = min(s @ c / np.sqrt(s @ s * (c @ c)) for s, c in zip(target, found, strict=True))
    assert cosine([{"y": target}], [{"y": found}], None) == pytest.approx(expected, abs=1e-12)


@given(target=VECTORS, scale=st.floats(0.1, 10))
def test_equal_vectors_are_best_whatever_their_scale(target, scale):
    assert cosine([{"y": target}], [{"y": target}], None) == pytest.approx(1)
    assert cosine([{"y": target}], [{"y": scale * target}], None) == pytest.approx(1)


def test_one_broken_vector_among_many_counts():
    target = RNG.standard_normal((40, 16))
    found = target.copy()
    found[7] = found[8]
    assert cosine([{"y": target}], [{"y": found}], None) < 0.9
    worse = cosine([{"y": target}] * 2, [{"y": target}, {"y": found}], None)
    assert worse == cosine([{"y": target}], [{"y": found}], None)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_or_misshapen_is_lowest(value):
    target = RNG.standard_normal((2, 16))
    found = target.copy()
    found[1, 3] = value
    assert cosine([{"y": target}], [{"y": found}], None) == -np.inf
    assert cosine([{"y": target}], [{"y": target[:, :9]}], None) == -np.inf


@pytest.mark.filterwarnings("error")
def test_silence_has_no_direction():
    target = np.stack([np.zeros(8), np.arange(8.0)])
    found = np.stack([np.full(8, 3.0), np.arange(8.0)])
    assert cosine([{"y": target}], [{"y": found}], None) == pytest.approx(1)
    assert cosine([{"y": target}], [{"y": 0 * target}], None) == 0
    with pytest.raises(CaseError, match="nothing to compare"):
        cosine([{"y": 0 * target}], [{"y": target}], None)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e-38, 1e38])
def test_no_square_overflows(scale):
    target = RNG.standard_normal((2, 16))
    found = [{"y": scale * target}]
    assert cosine(found, found, None) == pytest.approx(1)


def test_labels_are_the_target():
    target, found = RNG.standard_normal((2, 1, 16))
    value = cosine([{"y": found}], [{"y": found}], [target])
    assert value == cosine([{"y": target}], [{"y": found}], None) < 1


def test_trailing_axes_of_one_are_no_vectors():
    target = RNG.standard_normal((2, 16))
    found = target + 0.1
    flat = cosine([{"y": target}], [{"y": found}], None)
    assert cosine([{"y": target[..., None, None]}], [{"y": found[..., None, None]}], None) == flat


@given(VECTORS, VECTORS)
def test_snr_is_the_definition_with_faint_signals_60_db_below(target, found):
    noisy = target + 0.1 * np.abs(target).max() * np.where(found < -0.5, -1, 1)
    noise, power = ((part**2).sum(axis=1) for part in (target - noisy, target))
    expected = (10 * np.log10(np.maximum(power, 1e-6 * power.max()) / noise)).min()
    assert snr([{"y": target}], [{"y": noisy}], None) == pytest.approx(expected, abs=1e-6)
    assert snr([{"y": target}], [{"y": target}], None) == 100
    assert cosine_and_length([{"y": target}], [{"y": target}], None) == pytest.approx(1)


@pytest.mark.parametrize("scale", [0.01, 0.9, 1.1, 20])
def test_loudness_and_length_count_where_they_are_asked_for(scale):
    target = RNG.standard_normal((2, 16))
    given, found = [{"y": target}], [{"y": scale * target}]
    assert cosine(given, found, None) == pytest.approx(1)
    assert cosine_and_length(given, found, None) == pytest.approx(1 - (1 - scale) ** 2 / 2)
    assert snr(given, found, None) == pytest.approx(-20 * np.log10(abs(1 - scale)), abs=1e-6)


@given(VECTORS, VECTORS)
def test_of_vectors_of_one_length_it_is_the_cosine(target, found):
    found = found * np.linalg.norm(target, axis=1)[:, None] / np.linalg.norm(found, axis=1)[:, None]
    one, both = (f([{"y": target}], [{"y": found}], None) for f in (cosine, cosine_and_length))
    assert both == pytest.approx(one, abs=1e-9)


def test_quiet_signals_count_and_faint_ones_as_if_80_db_below():
    loud, quiet = np.ones((1, 4, 8)), np.full((1, 4, 8), 0.05)
    given = [{"y": loud}, {"y": quiet}, {"y": 0 * quiet}]
    assert snr(given, [given[0], {"y": 0 * quiet}, given[2]], None) == pytest.approx(0)
    faint = [given[0], given[1], {"y": 0 * quiet + 1e-6}]
    assert snr(given, faint, None) == pytest.approx(40)
    assert snr(given, [*given[:2], {"y": loud}], None) == pytest.approx(-80)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_or_misshapen_has_no_snr(value):
    target = RNG.standard_normal((2, 16))
    found = target.copy()
    found[1, 3] = value
    for metric in (snr, cosine_and_length):
        assert metric([{"y": target}], [{"y": found}], None) == -np.inf
        assert metric([{"y": target}], [{"y": target[:, :9]}], None) == -np.inf
        assert np.isfinite(metric([{"y": 1e38 * target}], [{"y": 1e38 * target}], None))
        with pytest.raises(CaseError, match="nothing to compare"):
            metric([{"y": 0 * target}], [{"y": target}], None)
