"""Which point of a curve answers a wish, by curves made by hand."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.errors import CaseError, UsageError
from halfwise.fixing.pick import MEASURED, Hopeful, Wish, implied
from halfwise.fixing.pick import pick as pick_measuring
from halfwise.records import Criterion, Recognised
from tests.unit.records.curves import curve, point, score


class Truth:
    """Measures points by what is written here, by their nodes."""

    def __init__(self, errors=None, fitting=()) -> None:
        self.errors, self.fitting = errors or {}, fitting
        self.asked: list[str] = []

    def error(self, point) -> float:
        self.asked.append(point.kept)
        return float(self.errors[point.kept])

    def fits(self, point) -> bool:
        self.asked.append(point.kept)
        return point.kept in self.fitting


def pick(made, criterion, wish, truth=None):
    return pick_measuring(made, criterion, wish, truth or Hopeful()).point


LOW = point("", 1.0, 9.0, heldout=8.0, rel_max=0.08, scores=(score(passed=False, value=0.9),))
ONE = point("0", 1.2, 3.0, heldout=3.5, rel_max=0.035, scores=(score(passed=True, value=0.995),))
SIDE = point("1", 1.3, 0.1, is_bound=True)
FULL = point("0-2", 2.0, 0.0, heldout=0.0, rel_max=0.0, scores=(score(passed=True, value=1.0),))
OWN = (score(passed=True, value=1.0),)
MASK = Recognised(
    kind="mask", metric="mask-iou", outputs=("y",), required=0.99, shape=(1, 1, 8, 8), evidence=()
)
MADE = curve(LOW, ONE, SIDE, FULL, recommended=1, reference=OWN)


@pytest.mark.parametrize(
    ("wish", "found"),
    [
        (Wish(), ONE),
        (Wish(worth=1.0), LOW),
        (Wish(worth=1.2), ONE),
        # Of its bound, 0.1, it is measured.
        (Wish(worth=1.5), SIDE),
        (Wish(worth=9), FULL),
        (Wish(kept=0), LOW),
        (Wish(kept=2), SIDE),
        (Wish(rel_max=0.1), LOW),
        # On held-out samples 0.035.
        (Wish(rel_max=0.032), FULL),
        (Wish(rel_max=0.04), ONE),
        (Wish(metric_drop=0.2), LOW),
        (Wish(metric_drop=0.006), ONE),
        (Wish(metric_drop=0), FULL),
    ],
)
def test_the_point_that_answers(wish, found):
    truth = Truth(errors={"1": 0.2}, fitting=("", "0"))
    assert pick(MADE, Criterion(), wish, truth) == found


def test_of_equal_errors_that_of_held_out_samples_decides():
    one, two = (point("0", 1.1, 1.0, heldout=h) for h in (5.0, 2.0))
    assert pick(curve(one, two), Criterion(), Wish(kept=1)) == two


def test_a_bound_is_measured_where_it_leaves_the_best_open():
    known, bound = point("0", 1.1, 3.0), point("1", 1.2, 2.0, is_bound=True)
    beyond = point("2", 1.2, 3.0, is_bound=True)
    made = curve(known, bound, beyond)
    worse, better = Truth({"1": 5.0}), Truth({"1": 2.5})
    assert pick(made, Criterion(), Wish(worth=1.5), worse) == known
    assert pick(made, Criterion(), Wish(worth=1.5), better) == bound
    assert worse.asked == better.asked == ["1"]


def test_few_are_measured_and_what_was_left_is_counted():
    bounds = [point(str(i), 1 + i / 50, 1.0, is_bound=True) for i in range(12)]
    made = curve(*bounds, count=12)
    errors = {p.kept: 5.0 + int(p.kept) for p in bounds}
    found = pick_measuring(made, Criterion(), Wish(worth=2.0), truth := Truth(errors))
    assert len(truth.asked) == MEASURED
    assert found.left == 12 - MEASURED
    assert found.point.kept == "4"


@given(st.integers(0, 40), st.data())
def test_the_cheapest_that_fits_is_found_where_dearer_ones_fit_too(many, data):
    first = data.draw(st.integers(0, many))
    some = [point(str(i), 1 + i / 50, 0.5, is_bound=True) for i in range(many)]
    truth = Truth(fitting={str(i) for i in range(first, many)})
    size = max(3, many)
    full = FULL.model_copy(update={"kept": f"0-{size - 1}", "count": size})
    made = curve(*some, full, count=size)
    found = pick_measuring(made, Criterion(), Wish(rel_max=0.01), truth)
    assert len(truth.asked) <= MEASURED
    assert found.point == full or found.point.kept in truth.fitting
    if many <= MEASURED:
        assert found.point == (some[first] if first < many else full)
        assert found.left == 0


def test_what_its_bound_excludes_is_not_measured():
    over, open_ = (point(k, 1.1, e, is_bound=True) for k, e in (("0", 5.1), ("1", 4.9)))
    truth = Truth(fitting={"0", "1"})
    assert pick(curve(over, open_, FULL), Criterion(), Wish(rel_max=0.05 - 1e-9), truth) == open_
    assert truth.asked == ["1"]


def test_the_model_itself_has_no_error_and_needs_no_measuring():
    for limit in (0.001, 0.0):
        truth = Truth()
        assert pick(curve(LOW, FULL), Criterion(), Wish(rel_max=limit), truth) == FULL
        assert truth.asked == []


def test_an_error_counts_on_the_samples_of_the_search_too():
    lucky = LOW.model_copy(update={"rel_max": 0.001})
    made = curve(lucky, FULL, reference=OWN)
    assert pick(made, Criterion(), Wish(rel_max=0.05)) == FULL
    assert pick(made, Criterion(rel_max=0.1), Wish(rel_max=0.5)) == FULL
    # The error of another criterion says nothing of it.
    truth = Truth(fitting={""})
    assert pick(made, Criterion(snr_db=40), Wish(rel_max=0.05), truth) == lucky


def test_a_plan_with_new_infinities_has_no_error_that_could_be_borne():
    broken = LOW.model_copy(update={"nonfinite": True, "error": inf})
    made = curve(broken, FULL, reference=OWN)
    assert pick(made, Criterion(), Wish(rel_max=0.5)) == FULL
    assert pick(made, Criterion(), Wish(metric_drop=0.5)) == FULL


def test_a_plan_that_is_known_to_be_infinite_inside_comes_last():
    broken = ONE.model_copy(update={"infinite_inside": True})
    made = curve(broken, LOW, FULL, reference=OWN)
    assert pick(made, Criterion(), Wish(rel_max=0.04)) == FULL
    assert pick(made, Criterion(), Wish(metric_drop=0.006)) == FULL
    assert pick(made, Criterion(), Wish(worth=1.2)) == LOW
    assert pick(curve(broken), Criterion(), Wish(worth=1.2)) == broken


@pytest.mark.parametrize(
    ("made", "wish", "told"),
    [
        (MADE, Wish(worth=0.5), "costs at most 0.5 ×; the nearest costs 1 ×"),
        (curve(ONE), Wish(kept=0), "keeps at most 0 nodes; the nearest keeps 1 node"),
        (curve(LOW, ONE), Wish(rel_max=0.01), "the nearest has a rel max of 0.035 and keeps 1"),
        (curve(LOW, reference=OWN), Wish(metric_drop=0.01), "the nearest loses top1 by 0.1"),
        (curve(LOW, reference=OWN), Wish(), "none of the plans .* passes top1 on both"),
        (curve(SIDE), Wish(), "no task metric is known"),
        (curve(SIDE, recognised=(MASK,)), Wish(), "it measured no plan on held-out samples"),
        (curve(point("0", None, 1.0)), Wish(worth=2), "could predict no costs"),
    ],
)
def test_where_none_answers_the_nearest_is_told(made, wish, told):
    with pytest.raises(CaseError, match=told):
        pick(made, Criterion(), wish)


def test_a_plan_that_passes_and_keeps_nothing_needs_no_score():
    low = point("", 1.0, 0.5)
    assert pick(curve(low, FULL, plan=0), Criterion(), Wish()) == low
    assert pick(curve(low, FULL, plan=0, recognised=(MASK,)), Criterion(), Wish()) == low
    for made in (
        curve(low, FULL),
        curve(low, FULL, plan=1),
        curve(low, FULL, plan=0, reference=OWN),
        curve(point("", 1.0, 1.5), FULL, plan=0),
        curve(point("", 1.0, 0.5, is_bound=True), FULL, plan=0),
    ):
        with pytest.raises(CaseError, match="recommends no plan"):
            pick(made, Criterion(), Wish())


def test_two_wishes_contradict_each_other():
    with pytest.raises(UsageError, match="--worth and --rel-max are both given"):
        pick(MADE, Criterion(), Wish(worth=1, rel_max=1))


def test_a_drop_needs_one_metric():
    with pytest.raises(UsageError, match="knows no task metric"):
        pick(curve(SIDE), Criterion(), Wish(metric_drop=0.01))
    other = score(passed=True).model_copy(update={"metric": "psnr"})
    with pytest.raises(UsageError, match="several metrics, psnr and top1"):
        pick(curve(LOW, reference=(*OWN, other)), Criterion(), Wish(metric_drop=0.01))


def test_outputs_without_a_task_are_no_metric_that_falls():
    rest = score(passed=True, value=-0.001).model_copy(update={"metric": "rel-max"})
    own = rest.model_copy(update={"value": 0.0})
    both = ONE.model_copy(update={"scores": (*ONE.scores, rest)})
    made = curve(both, FULL, reference=(*OWN, own))
    assert pick(made, Criterion(), Wish(metric_drop=0.006)) == both
    off = rest.model_copy(update={"value": -0.3, "passed": False})
    wrong = ONE.model_copy(update={"scores": (*ONE.scores, off)})
    made = curve(wrong, FULL, reference=(*OWN, own))
    assert pick(made, Criterion(), Wish(metric_drop=0.006)) == FULL
    assert implied(made, Criterion(), Wish(metric_drop=0.1))["metric"] == "top1"


def test_what_decides_follows_from_the_wish():
    known = MADE.model_copy(update={"recognised": (MASK,)})
    own = Criterion(max_abs=0.5)
    assert implied(known, own, Wish(rel_max=0.1)) == {"rel_max": 0.1}
    assert implied(known, own, Wish(metric_drop=0.1)) == {"metric": "top1", "metric_drop": 0.1}
    for wish in (Wish(), Wish(worth=2), Wish(kept=1)):
        assert implied(known, own, wish) == {"metric": "auto"}
        assert implied(MADE, own, wish) == {"max_abs": 0.5}
    given = Criterion(metric="psnr", metric_drop=0, drop_source="theirs")
    assert implied(MADE, given, Wish(kept=1)) == {"metric": "psnr", "metric_drop": 0}


def test_a_wish_is_told_as_it_is_typed():
    assert Wish().told == "choose"
    assert Wish(worth=1.05).told == "choose --worth 1.05"
    assert Wish(kept=0).told == "choose --kept 0"


def test_where_nothing_turns_out_to_fit_that_is_told():
    some = curve(SIDE, point("2", 1.4, 0.2, is_bound=True))
    with pytest.raises(CaseError, match=r"No measured plan of the run .* at most 0\.01\."):
        pick(some, Criterion(), Wish(rel_max=0.01), Truth())


def test_a_plan_that_fits_on_held_out_samples_is_tried_before_any_of_which_nothing_is_known():
    cheap = point("0", 1.01, 9.0, heldout=9.0, scores=(score(passed=True, value=1.0),))
    unknown = [point(f"1-{n}", 1.02 + n / 100, 9.0, is_bound=True) for n in range(2, 30)]
    whole = point("0-39", 2.0, 0.0, heldout=0.0, scores=OWN)
    made = curve(LOW, cheap, *unknown, whole, count=40, reference=OWN)
    truth = Truth(fitting=("0",))
    assert pick(made, Criterion(), Wish(metric_drop=0.01), truth) == cheap
    assert truth.asked == ["0"]
    doubtful = Truth(fitting=("1-20",))
    found = pick(made, Criterion(), Wish(metric_drop=0.01), doubtful)
    assert doubtful.asked[0] == "0"
    assert found in (*unknown, whole)
