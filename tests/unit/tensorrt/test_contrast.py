import pytest

from halfwise.records import (
    BuildConfig,
    BuildOutcome,
    EngineResult,
    Latency,
    OutputError,
    Side,
    Verdict,
)
from halfwise.tensorrt.contrast import ab_remark, fp32_remark, same_outputs

SIDE = Side(minimum=0.0, maximum=1.0, mean=0.5, deviation=0.1)


def result(error, median_ms=None, kept=0, snr_db=60.0):
    measured = OutputError(
        max_abs=error,
        rel_max=error,
        mean_abs=0.0,
        median_abs=0.0,
        snr_db=snr_db,
        cosine=1.0,
        agreement=None,
        nonfinite=0,
        reference=SIDE,
        candidate=SIDE,
        worst_sample="0",
        passed=True,
    )
    verdict = Verdict(
        passed=True,
        level="engine",
        samples=("0",),
        unseen=True,
        outputs={} if error is None else {"y": measured},
        worst_sample="0",
    )
    build = BuildOutcome(
        number=1,
        purpose="",
        status="built",
        config=BuildConfig(model_sha256="0", typing="weak"),
        seconds=1.0,
    )
    latency = None
    if median_ms is not None:
        latency = Latency(
            shapes={},
            iterations=10,
            median_ms=median_ms,
            p99_ms=median_ms,
            transfer_median_ms=median_ms,
            transfer_p99_ms=median_ms,
            per_second=1.0,
            device_bytes=1,
        )
    return EngineResult(name="", build=build, verdict=verdict, latency=latency, kept=kept)


@pytest.mark.parametrize(
    ("own", "free", "meaning"),
    [
        ((0.011, 1.42), (9.83, 1.10), "the constraint changes error and time in the engine"),
        ((0.011, 1.10), (9.83, 1.10), "the constraint changes error in the engine"),
        ((9.1, 1.5), (9.83, 1.10), "the constraint changes time in the engine"),
        ((9.1, 1.1), (9.83, 1.11), "do not show that the constraint has any effect"),
        ((float("inf"), 1.1), (float("inf"), 1.1), "do not show that the constraint has any"),
        ((0.011, None), (9.83, 1.10), "the constraint changes error in the engine"),
    ],
)
def test_an_a_b_comparison_says_what_the_constraint_changes(own, free, meaning):
    text = ab_remark(result(own[0], own[1], 67), result(*free))
    assert text.startswith("With 67 nodes constrained to FP32 the largest error is ")
    assert meaning in text


def test_an_a_b_comparison_without_a_result():
    failed = result(0.1).model_copy(update={"verdict": None})
    assert ab_remark(failed, result(0.1)).endswith("the build with the constraint has no result.")
    assert "without the constraint" in ab_remark(result(0.1), failed)


def test_the_same_outputs_by_every_measure():
    one, again = result(2.3245811462402344e-06).verdict, result(2.3245811462402344e-06).verdict
    assert one is not None
    assert again is not None
    assert same_outputs(one, again)
    assert not same_outputs(one, result(2.33e-06).verdict)
    shifted = SIDE.model_copy(update={"mean": 0.5000001})
    other = one.outputs["y"].model_copy(update={"candidate": shifted})
    assert not same_outputs(one, one.model_copy(update={"outputs": {"y": other}}))
    assert not same_outputs(one, one.model_copy(update={"samples": ("1",)}))


def test_outputs_without_any_error_prove_nothing():
    exact = result(0.0).verdict
    assert not same_outputs(exact, exact)
    broken = result(float("inf")).verdict
    assert not same_outputs(broken, broken)


@pytest.mark.parametrize(
    ("own", "fp32", "said"),
    [
        (133.0, 133.2, True),
        (130.0, 133.2, True),
        (72.6, 133.2, False),
        (90.0, 91.0, False),
        (float("inf"), float("inf"), False),
    ],
)
def test_an_engine_as_exact_as_the_fp32_one(own, fp32, said):
    text = fp32_remark(result(1e-6, snr_db=own).verdict, result(1e-6, snr_db=fp32).verdict)
    assert bool(text) is said
    assert not said or f"(SNR {own:.0f} dB" in text
