from halfwise.page.plans import classic_rows
from halfwise.records import EngineRung, Engines, Errors, LadderRung, Sizes, Worth
from tests.unit.records.curves import curve, point, score
from tests.unit.reporting.engine_runs import engines, latency, result
from tests.unit.reporting.runs import baseline, run, verdict, verification


def rung(name: EngineRung, **changed: object) -> LadderRung:
    return LadderRung.model_validate({"rung": name, "passed": True, **changed})


def test_a_run_without_engines_has_fp32_everything_low_and_its_plan() -> None:
    plans = curve(
        point("", 1.0, 40.0, scores=(score(passed=False, value=0.1),)),
        point("0", 1.2, 0.5, scores=(score(passed=True, value=0.995),)),
        reference=(score(passed=True, value=1.0),),
        plan=1,
    )
    found = run(
        curve=plans,
        worth=Worth(cost=1.2, fp32=2.0),
        sizes=Sizes(fp32=4000, plan=2100),
        baseline=baseline(),
    )
    fp32, low, own = classic_rows(found)
    assert (fp32.name, fp32.how, fp32.metrics, fp32.bytes) == (
        "FP32",
        "reference",
        {"top1": 1.0},
        4000,
    )
    assert (low.name, low.passed, low.cost, low.metrics) == ("all FP16", False, 1.0, {"top1": 0.1})
    assert low.errors == baseline().errors
    assert (own.name, own.passed, own.cost, own.bytes) == ("FP16 plan", True, 1.2, 2100)
    assert own.metrics == {"top1": 0.995}
    assert own.latency is None


def test_what_a_record_does_not_tell_is_unknown() -> None:
    tf32 = rung("tf32")
    row = next(r for r in classic_rows(run(rungs=(rung("fp32"), tf32))) if r.name == "TF32")
    assert (row.errors, row.cost, row.latency, row.bytes, row.kept) == (None,) * 5
    assert row.metrics == {}


def test_each_rung_has_a_row_and_int8_one_with_nothing_left_out() -> None:
    rungs = (rung("fp32"), rung("tf32"), rung("fp16", kept=2), rung("int8", left_out=3))
    errors = Errors(max_abs=0.3, mean_abs=0.2, median_abs=0.1)
    rungs = (*rungs[:1], rungs[1].model_copy(update={"errors": errors}), *rungs[2:])
    plan = run().plan
    assert plan is not None
    found = run(rungs=rungs, plan=plan.model_copy(update={"int8": ("a",)}), all_int8=baseline())
    rows = {row.name: row for row in classic_rows(found)}
    assert list(rows) == ["FP32", "TF32", "all FP16", "FP16 plan", "all INT8", "INT8 plan"]
    assert rows["TF32"].errors == errors
    assert rows["FP16 plan"].kept == 2


def test_engines_have_times_and_sizes_of_their_own_on_every_device() -> None:
    def device(name: str, **changed: object) -> Engines:
        found = engines(**changed)
        return found.model_copy(update={"worker": found.worker.model_copy(update={"name": name})})

    lost = result("mixed", 9, 1.0, verdict=None, latency=None, failure="It does not run.")
    found = run(engines=device("A"), further=(device("B", results=(lost,)),))
    rows = [row for row in classic_rows(found) if row.how.startswith("engine")]
    assert [(row.name, row.how) for row in rows[-2:]] == [
        ("mixed", "engine on A"),
        ("mixed", "engine on B"),
    ]
    assert classic_rows(run(engines=device("A")))[-1].how == "engine"
    assert (rows[3].latency, rows[3].bytes, rows[3].kept) == (latency(1.05), 10 * 2**20, 13)
    assert (rows[4].passed, rows[4].errors, rows[4].latency) == (None, None, None)


def test_engines_of_a_run_without_a_plan_are_there() -> None:
    wrong = result("FP32, TF32 off", 1, 1.0, verdict=verdict(passed=False), rung="fp32")
    (row,) = classic_rows(run(plan=None, engines=engines(results=(wrong,))))
    assert (row.name, row.how, row.passed) == ("FP32 without TF32", "engine", False)


def test_a_verified_candidate_is_one_row() -> None:
    (row,) = classic_rows(verification())
    assert (row.name, row.how, row.errors) == ("candidate", "emulated", verdict().errors)


def test_without_outputs_there_is_nothing() -> None:
    assert classic_rows(verification(verdict=verdict(outputs={}))) == ()
