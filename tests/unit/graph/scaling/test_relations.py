import numpy as np
import pytest

from halfwise.errors import CaseError
from halfwise.formats import FP16
from halfwise.graph.scaling import completed, relations
from halfwise.records import TensorName
from tests.unit.graph.sketch import Sketch, f32


def names(**exponents: int) -> dict[TensorName, int]:
    return {TensorName(name): e for name, e in exponents.items()}


def product(weight: np.ndarray) -> Sketch:
    sketch = Sketch()
    x = sketch.input("x", ["batch", 2])
    sketch.op("Relu", sketch.op("MatMul", x, sketch.constant(weight, "w"), name="mm"), name="end")
    return sketch


def test_what_a_model_asks_for():
    found = relations(product(f32([[1, -4], [0, 2]])).network("end_out").model)
    assert found.tensors == ("x", "mm_out", "end_out")
    assert found.fixed == {"x", "end_out@output"}
    assert [(r.node, r.terms, r.absorber) for r in found.equations] == [
        ("mm", {"x@mm:0": 1, "w@mm:1": 1, "mm_out": -1}, "w@mm:1"),
        ("end", {"mm_out@end:0": 1, "end_out": -1}, None),
    ]
    assert found.edges[TensorName("mm_out@end:0")].tensor == "mm_out"


def test_what_is_not_told_follows():
    found = relations(product(f32([[1, -4], [0, 2]])).network("end_out").model)
    full = completed(found, names(mm_out=-3, end_out=-3) | {TensorName("end_out@output"): 0})
    assert full["w@mm:1"] == full["mm_out@end:0"] == -3  # type: ignore[index]


@pytest.mark.parametrize(
    "told", [{"mm_out": 1}, {"x": 1}, {"end_out": 1}, {"nothing": 1}, {"mm_out@end:0": 300}]
)
def test_exponents_that_do_not_fit_are_refused(told):
    found = relations(product(f32([[1]] * 2)).network("end_out").model)
    with pytest.raises(CaseError):
        completed(found, told)


def test_how_far_a_constant_may_go():
    found = relations(product(f32([[1, -4], [0, 2.0**-14]])).network("end_out").model)
    (weight,) = found.constants.values()
    assert list(weight.magnitudes) == [2.0**-14, 4]
    assert weight.binades == {-14: 1, 0: 1, 2: 1}
    assert list(weight.exponents(FP16)) == [0, 13]
    assert list(weight.exponents()) == [-112, 125]
