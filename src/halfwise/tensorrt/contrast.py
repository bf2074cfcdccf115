"""What two builds differ in: the evidence there is where a fused block hides its precision."""

from math import isfinite

from halfwise.records import EngineResult, Verdict

_CHANGED_ERROR = 2.0
_CHANGED_TIME = 0.05
"""From which factor on errors differ, and from which share on latencies. Our choice: below, chance
in the choice of kernels may explain it (builds of one configuration on an H200 differ in time by a
few percent)."""
_EXACT_DB = 100.0
_ALIKE_DB = 6.0
"""What FP16 cannot reach, and what chance in the choice of FP32 kernels explains. One rounding to
FP16 leaves 20 log10(2^11 √3) = 71 dB of values spread evenly; errors that average out add to that,
3 dB for each doubling of what is averaged. FP32 engines of one model differ by less than 1 dB."""


def same_outputs(result: Verdict, fp32: Verdict) -> bool:
    """Return whether an engine gives the outputs of the FP32 engine, by every measure of them.

    All errors, and mean and deviation of the outputs, have to agree to the last digit, and some
    error has to be above 0: outputs that round alike (classes, masks) prove nothing. An engine with
    FP16 on the way does not do that. One that TensorRT built in FP32 although FP16 was allowed
    often does: three of six mixed engines of a vision transformer (8.6.0, H200).
    """
    told = any(isfinite(o.max_abs) and o.max_abs > 0 for o in fp32.outputs.values())
    return told and result.samples == fp32.samples and result.outputs == fp32.outputs


def fp32_remark(result: Verdict, fp32: Verdict) -> str:
    """Return that an engine is as exact as the FP32 engine, one sentence; "" where it is not.

    That is weaker than `same_outputs`: FP16 where it has no effect on the outputs stays possible.
    """
    errors = [(result.outputs[name], error) for name, error in fp32.outputs.items()]
    exact = all(f.snr_db >= _EXACT_DB and r.snr_db >= f.snr_db - _ALIKE_DB for r, f in errors)
    if not errors or not exact or not any(isfinite(f.snr_db) for _, f in errors):
        return ""
    worst = min(r.snr_db for r, _ in errors)
    return (
        f"The engine is as exact as the FP32 engine (SNR {worst:.0f} dB, where one rounding to "
        "FP16 leaves about 71 dB): whatever of it is in FP16 has no part in the outputs."
    )


def alike(first: float, second: float) -> bool:
    """Return whether errors (≥ 0, or inf) of two builds differ by no more than chance explains."""
    return first == second or max(first, second) <= _CHANGED_ERROR * min(first, second)


def ab_remark(with_constraint: EngineResult, without: EngineResult) -> str:
    """Return what a build with a constraint and one without it differ in, as one sentence.

    It is the evidence there is where a fused block hides its nodes. Weakly typed builds of one
    configuration differ too, so one pair of builds shows an effect, and never that there is none.
    """
    a, b = with_constraint.verdict, without.verdict
    if a is None or b is None or not a.outputs or not b.outputs:
        which = "with" if a is None or not a.outputs else "without"
        return f"There is no A/B comparison: the build {which} the constraint has no result."
    first, second = (max(o.max_abs for o in v.outputs.values()) for v in (a, b))
    text = (
        f"With {_count(with_constraint.kept, 'node')} constrained to FP32 the largest error is "
        f"{first:.3g}, without {second:.3g}"
    )
    error = not alike(first, second)
    time = False
    if with_constraint.latency and without.latency:
        own, other = with_constraint.latency.median_ms, without.latency.median_ms
        text += f"; a run takes {own:.3g} ms, without {other:.3g} ms"
        time = abs(own - other) > _CHANGED_TIME * other
    changed = " and ".join(["error"] * error + ["time"] * time)
    meaning = (
        f"so the constraint changes {changed} in the engine, whatever its inspector shows"
        if changed
        else "so these two builds do not show that the constraint has any effect"
    )
    return f"{text}: {meaning}."


def _count(quantity: int, noun: str) -> str:
    return f"{quantity} {noun}" if quantity == 1 else f"{quantity} {noun}s"
