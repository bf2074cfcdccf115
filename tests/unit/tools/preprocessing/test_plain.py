import numpy as np
import pytest

from halfwise.tools.preprocessing.plain import compare_plain
from halfwise.tools.preprocessing.program import transformation


@pytest.fixture
def rows():
    return list(np.random.default_rng(2).normal(size=(5, 4, 7)).astype(np.float32))


def compared(a, b):
    return compare_plain(a, b, ("x", "x"))


def test_nothing(rows):
    found = compared(rows, rows)
    assert (found.differences, found.residual_max, found.code) == ((), 0, "")


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (lambda x: x * 2, ["scale"]),
        (lambda x: x + 1, ["mean"]),
        (lambda x: x.T, ["layout"]),
        (lambda x: x.astype(np.float64), ["dtype"]),
        (lambda x: x.T * 3, ["layout", "scale"]),
    ],
)
def test_what_is_explained(rows, change, kinds):
    other = [change(x) for x in rows]
    found = compared(rows, other)
    assert [d.kind for d in found.differences] == kinds
    assert found.exact
    made = transformation(found.code)(rows[3])
    assert np.allclose(made, other[3], atol=1e-5)
    assert made.dtype == other[3].dtype


def test_order(rows):
    found = compared(rows, [rows[i] for i in (3, 0, 1, 2, 4)])
    assert [d.kind for d in found.differences] == ["order"]
    assert found.order == (3, 0, 1, 2, 4)
    assert found.exact


def test_what_is_not_explained(rows):
    found = compared(rows, [np.sin(9 * x) for x in rows])
    assert [d.kind for d in found.differences] == ["values"]
    assert not found.exact


def test_other_shapes(rows):
    found = compared(rows, [x[:2] for x in rows])
    assert [d.kind for d in found.differences] == ["shape"]
    assert (found.largest, found.residual_max) == (None, np.inf)


def test_scalars():
    assert compared([np.float32(1)], [np.float32(1)]).differences == ()


def test_text_is_equal_or_not():
    words = [np.array(["a", "b"], dtype=object), np.array(["c"], dtype=object)]
    assert compared(words, words).differences == ()
    found = compared(words, [words[0], words[0]])
    assert [d.evidence for d in found.differences] == ["1 of 2 samples differ"]


def test_one_sample_of_another_shape():
    a, b = [np.ones(4), np.ones(5)], [np.ones(4), np.ones(6)]
    found = compare_plain(a, b, ("x", "x"))
    assert [(d.kind, d.a, d.b) for d in found.differences] == [("shape", "(5,)", "(6,)")]
    assert found.residual_max == np.inf
