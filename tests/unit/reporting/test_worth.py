from halfwise.records import NearPlan, Worth
from halfwise.reporting.steps import cost_line, nothing_gained
from halfwise.reporting.view import report
from tests.unit.records.curves import curve, point, score
from tests.unit.reporting.runs import run, search, verdict

NEAR = NearPlan(kept=12, cost=1.2, error=3.4)
NOTHING = Worth(cost=2.9, fp32=3.0, nearest=NEAR, metric="mask-iou")


def test_the_first_line_says_that_nothing_is_gained_and_what_would():
    title = report(run(worth=NOTHING)).title
    assert title.startswith("PASSED (emulated) on 64 held-out samples, but it gains little: ")
    assert "is predicted to save 5 % of what everything in FP16 would" in title
    assert "keeps 12 nodes, costs 1.2 × everything low, and has 3.4 × the error allowed" in title
    assert "--metric mask-iou" in title


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


def test_a_plan_that_costs_more_than_fp32_says_so_first_and_what_to_do():
    dear = Worth(cost=18.57, fp32=1.91)
    ended = search(exhausted=True, budget=1500.0, ended_by=("work", "seconds"))
    assert nothing_gained(run(worth=dear, search=ended)) == (
        ", but it is predicted to cost 9.72 × FP32: use the FP32 model, "
        "or give the search more time (--budget time=SECONDS)"
    )
    ended = search(exhausted=True, budget=1500.0, ended_by=("work",))
    told = nothing_gained(run(worth=dear, search=ended))
    assert told.endswith("or give the search more work (--budget inferences=N)")
    ended = search(exhausted=True, budget=1500.0, ended_by=("interrupt",))
    told = nothing_gained(run(worth=dear, search=ended))
    assert told.endswith("or let the interrupted search finish")
    assert nothing_gained(run(worth=dear)).endswith("× FP32: use the FP32 model")
    assert "1.2 × FP32" in nothing_gained(run(worth=Worth(cost=0.96, fp32=0.8)))
    timed = Worth(cost=1.2, fp32=2.0, measured=3.0, measured_fp32=2.0)
    assert ", but it takes 1.5 × FP32" in nothing_gained(run(worth=timed))


def test_a_plan_that_only_lacks_the_margin_names_it():
    near = NOTHING.model_copy(update={"nearest": NEAR.model_copy(update={"error": 0.9})})
    assert "has 0.9 × the error allowed, which --require margin=1 accepts" in nothing_gained(
        run(worth=near)
    )
    assert "--require margin" not in nothing_gained(run(worth=NOTHING))


def test_costs():
    assert cost_line(NOTHING, "everything low").startswith(
        "Predicted cost: 2.9 × everything low, where FP32"
    )
    timed = NOTHING.model_copy(update={"measured": 1.04})
    uncertain = "Uncertain: INT8 took 1.3 to 2.3 × its predicted cost on the one GPU measured."
    assert cost_line(NOTHING, "everything low", int8=True).endswith(uncertain)
    assert uncertain not in cost_line(timed, "all", int8=True)
    assert cost_line(timed, "all").endswith("Measured: 1.04 × the time of the engine with all.")


def test_where_a_plan_is_offered_it_is_the_only_advice():
    serving = point("", 1.0, 9.0, scores=(score(passed=True, value=0.995),))
    found = curve(serving, point("0-1", 2.9, 0.5), plan=1, recommended=0)
    for worth in (NOTHING, Worth(cost=3.3, fp32=3.0)):
        told = nothing_gained(run(worth=worth, curve=found))
        assert told.endswith("; a plan with 0 nodes in FP32 keeps top1 (see Next)")
        assert "--metric" not in told
        assert "use the FP32 model" not in told
