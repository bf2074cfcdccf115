from halfwise.records import NearPlan, Worth
from halfwise.reporting.steps import cost_line, nothing_gained
from halfwise.reporting.view import report
from tests.unit.reporting.runs import run, verdict

NEAR = NearPlan(kept=12, cost=1.2, error=3.4)
NOTHING = Worth(cost=2.9, fp32=3.0, nearest=NEAR, metric="mask-iou")


def test_a_gain_is_no_remark_and_a_failure_has_another_reason():
    assert nothing_gained(run()) == ""
    assert nothing_gained(run(worth=Worth(cost=1.2, fp32=3.0))) == ""
    assert nothing_gained(run(worth=NOTHING, verdict=verdict(passed=False))) == ""


def test_nothing_is_said_of_what_saves_nothing_alone():
    told = nothing_gained(run(worth=Worth(cost=3.0, fp32=3.0)))
    assert told.startswith(", but it gains nothing: it is predicted to save 0 % of what")


def test_what_fails_for_its_cost_alone_says_so_first():
    short = verdict(passed=False, required_worth=1.1)
    title = report(run(worth=NOTHING, verdict=short)).title
    assert title == (
        "FAILED (emulated) on 64 held-out samples on cost alone: the outputs pass, but it is "
        "predicted to cost 2.9 × everything in FP16, and at most 1.1 × is required"
    )
    timed = NOTHING.model_copy(update={"measured": 2.9, "measured_fp32": 3.0})
    assert "but it takes 2.9 × everything in FP16" in nothing_gained(
        run(worth=timed, verdict=short)
    )
    assert "its cost is unknown, and at most 1.1 ×" in nothing_gained(
        run(worth=None, verdict=short)
    )


def test_times_are_told_as_measured():
    timed = NOTHING.model_copy(update={"measured": 2.9, "measured_fp32": 3.0})
    assert ": it saves 5 % of what" in nothing_gained(run(worth=timed))


def test_where_the_low_format_saves_nothing_that_is_what_is_told():
    told = nothing_gained(run(worth=Worth(cost=1.0, fp32=0.8)))
    assert told == (", but it gains nothing: FP32 is predicted to cost 0.8 × everything in FP16")


def test_costs():
    assert cost_line(NOTHING, "everything low").startswith(
        "Predicted cost: 2.9 × everything low, where FP32"
    )
    timed = NOTHING.model_copy(update={"measured": 1.04})
    uncertain = "Uncertain: INT8 took 1.3 to 2.3 × its predicted cost on the one GPU measured."
    assert cost_line(NOTHING, "everything low", int8=True).endswith(uncertain)
    assert uncertain not in cost_line(timed, "all", int8=True)
    assert cost_line(timed, "all").endswith("Measured: 1.04 × the time of the engine with all.")
