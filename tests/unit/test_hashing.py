import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from halfwise.case import hash_sample, hash_together

arrays = hnp.arrays(
    st.sampled_from([np.float32, np.int64, np.bool_]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
lists = st.lists(st.dictionaries(st.sampled_from(["a", "b", "ab"]), arrays), max_size=3)


def digest(samples):
    return hash_together(each(samples))


def each(samples):
    return tuple(map(hash_sample, samples))


def content(samples):
    return [
        sorted((name, a.dtype.name, a.shape, a.tobytes()) for name, a in sample.items())
        for sample in samples
    ]


@given(lists, lists)
def test_hashes_are_equal_exactly_where_the_content_is(one, two):
    assert (digest(one) == digest(two)) == (content(one) == content(two))


@given(lists)
def test_samples_with_the_same_content_have_the_same_hash(samples):
    hashes, contents = each(samples), [repr(c) for c in content(samples)]
    assert [hashes.index(h) for h in hashes] == [contents.index(c) for c in contents]


@given(arrays)
def test_layout_and_order_of_inputs_do_not_count(array):
    turned = np.asfortranarray(array) if array.ndim else array
    assert digest([{"a": array, "b": array}]) == digest([{"b": turned, "a": turned}])


def test_dtype_shape_and_order_count():
    zeros = np.zeros((2, 3), np.float32)
    hashes = {
        digest([{"a": zeros}]),
        digest([{"b": zeros}]),
        digest([{"a": zeros.T}]),
        digest([{"a": zeros.view(np.int32)}]),
        digest([{"a": -zeros}]),
        digest([{"a": zeros}] * 2),
        digest([{"a": zeros}, {"a": -zeros}]),
        digest([{"a": -zeros}, {"a": zeros}]),
    }
    assert len(hashes) == 8


def test_text_is_hashed_by_content():
    one, two = ["".join(["a", "b"]), "c"], ["ab", "c"]
    make = [{"a": np.array(items, dtype=object)} for items in (one, two, ["a", "bc"])]
    assert digest(make[:1]) == digest(make[1:2]) != digest(make[2:])


def test_the_hash_stays_the_same_between_versions():
    assert digest([{"x": np.arange(3, dtype=np.float32)}]).startswith("2c7577e99cde6f64")


def test_samples_are_told_apart_by_every_bit_and_shape():
    some = [
        {"x": np.zeros((2, 3), np.float32)},
        {"x": np.zeros((3, 2), np.float32)},
        {"x": np.full((2, 3), -0.0, np.float32)},
        {"y": np.zeros((2, 3), np.float32)},
        {"x": np.array([["a" * 2000]], object)},
        {"x": np.array([["a" * 1999 + "b"]], object)},
        {"x": np.array(True)},
        {"x": np.zeros(0, np.float32)},
    ]
    assert len({hash_sample(sample) for sample in some}) == len(some)
