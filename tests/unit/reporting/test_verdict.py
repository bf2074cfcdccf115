from typing import Any

import pytest

from halfwise.records import (
    Criterion,
    DynamicAxis,
    FailureBound,
    IntermediateNonfinite,
    JudgedBatch,
    MetricResult,
    SliceGroup,
    TensorName,
    Unjudged,
    Verdict,
)
from halfwise.reporting.verdict import (
    allowed,
    bound_part,
    doubt,
    inside,
    not_judged,
    scale_lines,
    size_lines,
)
from halfwise.reporting.view import report
from halfwise.wording import MOST_ROWS
from tests.unit.reporting.runs import HELDOUT, output_error, run, verdict


def test_thresholds():
    assert allowed(Criterion()) == "rel max ≤ 0.01"
    assert allowed(Criterion(max_abs=0.5, snr_db=40)) == "max abs ≤ 0.5, SNR dB ≥ 40"


def test_a_default_of_a_metric_tells_whose_it_is():
    given = Criterion(metric="top1", metric_drop=0.01)
    assert allowed(given) == "top1 may fall by 0.01"
    default = given.model_copy(update={"drop_source": "MLPerf"})
    assert allowed(default) == "top1 may fall by 0.01 by default (MLPerf)"


def line(bound=None, **more):
    shown = bound_part(run(verdict=verdict(failure_bound=bound, **more)))
    return None if shown is None else shown.lines[0]


def of(judged, failing, upper):
    return FailureBound(judged=judged, failing=failing, upper=upper, confidence=0.95)


@pytest.mark.parametrize(
    ("bound", "begins", "says"),
    [
        (of(10, 0, 0.2589), "None of 10 samples is out", "with 95 % confidence at most 26 % "),
        (of(12, 1, 0.3387), "1 of 12 samples is out", "at most 34 % "),
        (of(12, 2, 0.4382), "2 of 12 samples are out", "at most 44 % "),
        (of(59, 0, 0.04952), "None of 59", "at most 5.0 % "),
        (of(1000, 0, 0.002991), "None of 1000", "at most 0.30 % "),
    ],
)
def test_bounds(bound, begins, says):
    assert line(bound).startswith(begins)
    assert says in line(bound)
    assert "drawn from them independently" in line(bound)


@pytest.mark.parametrize(("upper", "told"), [(0.1, False), (0.101, True)])
def test_the_title_tells_a_bound_above_a_tenth(upper, told):
    assert ("of inputs may fail" in doubt(verdict(failure_bound=of(29, 0, upper)))) is told


def test_nothing_is_bounded_where_all_samples_fail() -> None:
    assert line(of(2, 2, 1)) == "2 of 2 samples are out of tolerance."


def test_few_samples_of_a_metric_have_no_bound_in_the_title():
    score = MetricResult(
        name="top1", reference=1.0, candidate=1.0, allowed_drop=0.01, passed=True, labelled=False
    )
    assert doubt(verdict(metric=score)) == ""
    assert doubt(verdict(metric=score, samples=HELDOUT[:4])).startswith(
        ", too few to say how many inputs"
    )
    assert doubt(verdict(samples=HELDOUT[:4])) == ""
    one = score.model_copy(update={"evidence": 1, "unit": "rows"})
    assert doubt(verdict(metric=one)) == "; top1 rests on 1 row"
    nine, ten = (score.model_copy(update={"evidence": n, "unit": "rows"}) for n in (9, 10))
    assert doubt(verdict(metric=nine)) == "; top1 rests on 9 rows"
    assert doubt(verdict(metric=ten)) == ""


def test_no_sample_no_bound():
    assert line() is None


def test_a_pooled_threshold_is_held_by_each_sample_by_itself():
    judged = run(criterion=Criterion(snr_db=40), verdict=verdict(failure_bound=of(10, 0, 0.26)))
    shown = bound_part(judged)
    assert shown is not None
    assert "out of tolerance on its own" in shown.lines[0]


def test_samples_that_joined_the_search_are_told():
    told = line(of(20, 0, 0.5).model_copy(update={"joined": 10}))
    assert told.startswith(
        "None of 20 samples is out of tolerance; counting the 10 that joined the "
    )
    assert "as failing, with 95 % confidence at most 50 % of all inputs are" in told


def test_the_first_line_says_how_little_few_samples_show():
    def title(bound, **more):
        return report(run(verdict=verdict(failure_bound=bound, **more))).title

    told = title(of(10, 0, 0.2589))
    assert told.endswith(" held-out samples; up to 26 % of inputs may fail (95 % bound)")
    assert "at most" not in title(of(29, 0, 0.0982))
    assert "at most" not in title(of(10, 2, 0.5), passed=False)
    assert "at most" not in title(None)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Unjudged(kind="non-finite", name="y"), "output y: FP32 itself gives no finite value"),
        (Unjudged(kind="empty", name="y"), "output y: it is empty on every sample"),
        (Unjudged(kind="zeros", name="y"), "zeros would pass for its values"),
        (Unjudged(kind="zeros", name="y", reference=0.5), "for its values, whose largest is 0.5"),
        (Unjudged(kind="constant", name="y"), "psnr has no peak"),
        (
            Unjudged(kind="never-ran", name="choose", body="then_branch", op="If"),
            "If node choose: then_branch never ran",
        ),
        (
            Unjudged(kind="never-ran", name="a", body="then_branch", op="If", inputs=("rate",)),
            "on any sample; input rate decides whether it runs",
        ),
        (
            Unjudged(kind="metric", name="epe", reference=-0.5, other=-0.6, allowed=0.1),
            "epe would accept near-zero values for all outputs: they score 0.6, the "
            "FP32 outputs 0.5, and a rise of 0.1 is allowed",
        ),
        (
            Unjudged(kind="guessing", name="top1", reference=0.1, other=0.1, labelled=True),
            "score 0.1, no better than guessing, 0.1. Do the labels fit?",
        ),
    ],
)
def test_what_is_not_judged_is_told_with_its_numbers(found, words):
    told = not_judged(found)
    assert told.startswith("not judged: ")
    assert words in told


BATCH = JudgedBatch(
    size=2,
    shapes={TensorName("ids"): (2, 77)},
    samples=("a", "b", "c", "d"),
    whole=False,
    passed=True,
    rel_max={"y": 0.001},
)


def axis(*sizes, symbol="n", **further):
    inputs = {TensorName("ids"): 0, TensorName("mask"): 0}
    return DynamicAxis(inputs=inputs, symbol=symbol, sizes=sizes, **further)


def lines(*axes, batch=None):
    return list(size_lines(verdict(axes=axes, batch=batch)))


def test_nothing_of_a_static_model():
    assert lines() == []


def test_an_axis_at_two_sizes():
    assert lines(axis(3, 5, symbol=None)) == ["Axis 0 of ids, mask is dynamic: judged at 3 and 5."]
    assert lines(axis(1, 2), batch=BATCH) == [
        "Axis 0 'n' of ids, mask is dynamic: judged at 1 and 2 (4 samples combined)."
    ]


def test_batches_that_are_compared_whole_or_fail():
    whole = BATCH.model_copy(update={"whole": True, "passed": False})
    (line,) = lines(axis(1, 2), batch=whole)
    assert "(whole batches of 2, since not all outputs divide into samples; give inputs" in line


def test_a_record_may_name_no_size():
    assert len(lines(axis())) == 1


def test_an_axis_at_one_size():
    (line,) = lines(axis(640))
    assert line.endswith("is dynamic, and every sample has size 640: no other size was judged.")
    (line,) = lines(axis(1, why="fails", detail="it fails at node a"))
    assert line.endswith("no other size was judged; no batches were judged: it fails at node a.")


def test_many_sizes_are_cut():
    (line,) = lines(axis(*range(1, 30)))
    assert "judged at 29 sizes from 1 to 29." in line


def group(**changed: Any) -> SliceGroup:
    values: dict[str, Any] = {
        "axis": 1,
        "ranges": ((4, 83),),
        "slices": 80,
        "scale": 0.93,
        "max_abs": 0.43,
        "allowed": 0.0093,
        "worst_sample": HELDOUT[0],
        "passed": False,
    }
    return SliceGroup(**values | changed)


BOXES = group(ranges=((0, 3),), slices=4, scale=640.0, max_abs=0.5, allowed=6.4, passed=True)


def test_failed_groups_come_first():
    error = output_error(groups=(BOXES, group(room=10.0)))
    lines = scale_lines(verdict(outputs={"output0": error}))
    assert lines is not None
    assert lines.lines == (
        "output0, slices 4-83 of axis 1: up to 0.93, off by 0.43 of 0.0093 allowed, 10 times the "
        "tolerance as they are few: too much.",
        "output0, slices 0-3 of axis 1: up to 640, off by 0.5 of 6.4 allowed.",
    )


def test_values_on_an_offset_are_told_by_their_span():
    pressure = group(scale=2e4, span=2e3, max_abs=900.0, allowed=200.0)
    lines = scale_lines(verdict(outputs={"y": output_error(groups=(pressure,))}))
    assert lines is not None
    (line,) = lines.lines
    assert line.startswith("y, slices 4-83 of axis 1: spanning 2000 on an offset, off by 900")


def test_one_scale_says_nothing_and_many_are_counted():
    assert scale_lines(verdict()) is None
    many = output_error(groups=(BOXES,) * (MOST_ROWS + 3))
    lines = scale_lines(verdict(outputs={"y": many}))
    assert lines is not None
    assert lines.lines[-1] == "And 3 more."


def nonfinite_in(*harmless: bool | None) -> Verdict:
    tensors = tuple(
        IntermediateNonfinite(tensor=TensorName(f"t{i}"), producer=None, elements=1, harmless=h)
        for i, h in enumerate(harmless)
    )
    return Verdict(
        passed=True,
        level="emulated",
        samples=("s",),
        unseen=True,
        outputs={},
        worst_sample=None,
        intermediate_nonfinite=tensors,
    )


def test_nothing_is_said_where_all_is_finite():
    assert inside(nonfinite_in()) is None


def test_that_it_is_harmless_is_said_where_all_of_it_is_known_to_be():
    told = inside(nonfinite_in(True, True))
    assert told is not None
    assert "2 tensors" in told.lines[0]
    assert "no harm" in told.lines[1]
    for unknown in (None, False):
        told = inside(nonfinite_in(True, unknown))
        assert told is not None
        assert told.lines[0].endswith("first of those that may do harm t1.")
        assert told.lines[1].startswith("1 of them does no harm")


def test_a_limit_is_told_only_where_the_reference_was_seen_to_be_at_it():
    plain = nonfinite_in(True, True)
    tensors = plain.intermediate_nonfinite
    told = {}
    for end in ("limit", "unseen", "wrong", "unread", None):
        each = tuple(t.model_copy(update={"ends": end}) for t in tensors)
        found = inside(plain.model_copy(update={"intermediate_nonfinite": each}))
        assert found is not None
        told[end] = found.lines[1]
    assert [end for end, line in told.items() if "FP32 is at it" in line] == ["limit", "unseen"]
    assert "no sample shows whether FP32 is at it" in told["unseen"]
    assert told["wrong"].startswith("They do no harm: the values are wrong before")
    assert told["unread"] == "They do no harm: nothing computes with them."


def test_an_output_that_is_not_finite_in_fp32_is_told():
    error = output_error()
    side = error.reference.model_copy(update={"nonfinite": 446, "elements": 960})
    told = inside(verdict(outputs={"y": error.model_copy(update={"reference": side})}))
    assert told is not None
    assert told.lines[0].startswith(
        "FP32 itself gives NaN or infinite values in y, 446 of 960 values"
    )
