import numpy as np

from halfwise.judging.judge import judge_outputs
from halfwise.records import Criterion, replace
from halfwise.reporting.remarks import steps_told
from halfwise.tools.diagnose.subject import signs_of, skipped


def test_references_are_the_models_own(subject):
    made = subject()
    assert len(made.references) == len(made.samples)
    np.testing.assert_array_equal(
        made.references[1]["y_out"], made.session.run(made.samples[1])["y_out"]
    )


def test_a_metric_decides_where_there_is_one(subject):
    made = subject()
    assert made.same_function.snr_db == 60
    criterion = Criterion(metric="top1")
    case = replace(made.case, criterion=criterion, metric=lambda *_: 1.0)
    assert replace(made, case=case).same_function == criterion


def test_signs_of_a_verdict(subject):
    made = subject()
    wrong = [{"y_out": r["y_out"] * 2} for r in made.references]
    verdict = judge_outputs(wrong, made.samples, made.references, Criterion(), None).verdict
    signs = signs_of(verdict, "the engine")
    assert [sign.severity for sign in signs] == ["error"]
    assert "SNR" in signs[0].text
    right = judge_outputs(made.references, made.samples, made.references, Criterion(), None).verdict
    (sign,) = signs_of(right, "the engine")
    assert sign.severity == "info"
    assert "SNR of inf dB" in sign.text


def test_what_is_skipped():
    rung = skipped(3, "model", "why", "what to do")
    assert (rung.passed, rung.how, steps_told(rung.advice)) == (None, "skipped", ("what to do",))
