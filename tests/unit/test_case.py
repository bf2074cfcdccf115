import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.case import Case, Column, Rules, Samples, Settings
from halfwise.errors import CaseError
from halfwise.records import Criterion, replace


def samples(*values, labels=None):
    loaded = []

    def load(index):
        loaded.append(index)
        return {"x": np.array(values[index])}

    made = Samples(tuple(f"s{v}" for v in values), load, labels)
    return made, loaded


def values(of):
    return [int(sample["x"]) for sample in of]


def test_a_sample_is_loaded_when_it_is_asked_for():
    made, loaded = samples(5, 6, 7)
    assert len(made) == 3
    assert loaded == []
    assert int(made[1]["x"]) == 6
    assert loaded == [1]
    assert values(made) == [5, 6, 7]


def test_held_samples_are_the_same_objects_again():
    samples = Samples(("a", "b"), lambda i: {"x": np.array([i])}).held()
    first = samples[0]
    assert samples[1]["x"] == [1]
    assert samples[0] is first
    assert samples.held() is samples


def test_of_large_samples_only_those_loaded_last_are_held(monkeypatch):
    monkeypatch.setattr("halfwise.case.HELD_BYTES", 20)
    loaded = []

    def load(index):
        loaded.append(index)
        return {"x": np.zeros(1 if index < 3 else 4, np.int64)}

    samples = Samples(("a", "b", "c", "large"), load).held()
    for index in (0, 1, 0, 2, 0, 1):
        assert samples[index]["x"].shape == (1,)
    assert loaded == [0, 1, 2, 1]
    large = samples[3]
    assert samples[3] is large
    assert loaded == [0, 1, 2, 1, 3]


def test_held_texts_count_with_their_letters(monkeypatch):
    monkeypatch.setattr("halfwise.case.HELD_BYTES", 1000)
    made = Samples(("a", "b"), lambda _: {"x": np.array(["x" * 900], object)}).held()
    first, _ = made[0], made[1]
    assert made[0] is not first


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_outside_is_refused(index):
    made, loaded = samples(5, 6, 7)
    with pytest.raises(IndexError):
        made[index]
    assert loaded == []


@given(st.lists(st.integers(0, 99), max_size=8), st.data())
def test_a_selection_keeps_samples_ids_and_labels_together(numbers, data):
    made, loaded = samples(*numbers, labels=tuple(10 * n for n in numbers))
    places = st.lists(st.integers(0, len(numbers) - 1)) if numbers else st.just([])
    chosen = data.draw(places)
    picked = made.select(chosen)
    assert loaded == []
    assert values(picked) == [numbers[i] for i in chosen]
    assert picked.ids == tuple(f"s{numbers[i]}" for i in chosen)
    assert picked.labels == tuple(10 * numbers[i] for i in chosen)


@given(st.lists(st.integers(0, 99), max_size=5), st.lists(st.integers(0, 99), max_size=5))
def test_sums_put_one_after_the_other(first, second):
    one, _ = samples(*first, labels=tuple(first))
    two, _ = samples(*second, labels=tuple(second))
    both = one + two
    assert values(both) == first + second
    assert both.ids == one.ids + two.ids
    assert both.labels == tuple(first + second)


def test_labels_survive_only_where_both_have_them():
    one, _ = samples(1, labels=(1,))
    two, _ = samples(2)
    assert (one + two).labels is None
    assert (two + one).labels is None
    assert one.select([]).labels == ()
    assert two.select([0]).labels is None


def test_a_selection_of_a_sum_of_selections():
    one, _ = samples(1, 2, 3)
    two, _ = samples(4, 5, 6)
    mixed = (one.select([2, 0]) + two.select([1])).select([2, 1, 0])
    assert values(mixed) == [5, 1, 3]
    assert mixed.ids == ("s5", "s1", "s3")


def test_defaults_are_those_of_the_documentation():
    settings = Settings()
    assert settings.rules == Rules((), (), ())
    assert (settings.headroom, settings.margin) == (2, 0.8)
    assert (settings.budget, settings.time_budget) == (1500, 1800)
    assert (settings.fmt.name, settings.io, settings.accumulate) == ("fp16", "fp32", "fp32")


def test_a_case_is_about_real_data_unless_said_otherwise():
    made, _ = samples(1)
    case = Case(None, made, made.select(()), Criterion(), None, (), "")  # type: ignore[arg-type]
    assert case.real


def test_one_input_of_all_samples():
    made, loaded = samples(5, 6)
    column = Column(made, "x")
    assert len(column) == 2
    assert loaded == []
    assert [int(array) for array in column] == [5, 6]
    with pytest.raises(CaseError, match="s5 has no input 'y'"):
        Column(made, "y")[0]


def test_samples_are_known_by_their_marks():
    made, _ = samples(5, 6, 7)
    assert made.marked({"a"}) == ()
    assert replace(made, marks=("a", "b", "a")).marked({"a", "c"}) == (0, 2)
