import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.errors import CaseError
from halfwise.records import Criterion, ShapeRange, TensorName
from halfwise.tensorrt.recipes.tuning import Handed, gate, tuning
from tests.unit.tensorrt.recipes.made import profile, strong


def outputs(*scales, **arrays):
    found = {f"y{i}": np.array([0, -scale, scale / 2]) for i, scale in enumerate(scales)}
    return found | {name: np.array(array) for name, array in arrays.items()}


@pytest.mark.parametrize(
    ("criterion", "algorithm", "threshold"),
    [
        (Criterion(), "lInf", 0.03),
        (Criterion(rel_max=0.1), "lInf", 0.3),
        (Criterion(max_abs=0.2), "lInf", 0.2),
        (Criterion(max_abs=0.2, rel_max=1e-3), "lInf", 3e-3),
        (Criterion(snr_db=20.0), "l2", 0.01 * 2 * 2 * (1 + 1 / 4) / 3),
        (Criterion(cosine=0.999), "cos", 1e-3),
        (Criterion(metric="top1"), "lInf", 0.7),
    ],
)
def test_the_limit_is_that_of_the_run(criterion, algorithm, threshold):
    found = gate(criterion, [outputs(3.0), outputs(2.0)], {TensorName("y0"): 0.7})
    assert found.algorithm == algorithm
    assert found.threshold == pytest.approx(threshold)


def test_of_several_outputs_the_strictest():
    found = gate(Criterion(), [outputs(3.0, 500.0)], {})
    assert found.threshold == pytest.approx(0.03)
    assert "y0 0.03, y1 5" in found.notes[0]


def test_of_several_thresholds_one_is_told():
    found = gate(Criterion(rel_max=0.01, snr_db=30), [outputs(1.0)], {})
    assert "Of rel_max, snr_db, trtexec gets only what lInf can express." in found.notes


@pytest.mark.parametrize("criterion", [Criterion(), Criterion(metric="m"), Criterion(snr_db=30)])
def test_without_a_limit_above_zero_there_is_no_recipe(criterion):
    with pytest.raises(CaseError, match="The limit for output 'y0' is 0"):
        gate(criterion, [outputs(0.0)], {})


@given(st.lists(st.floats(width=32), min_size=1), st.floats(1e-6, 1))
def test_what_is_not_finite_sets_no_limit(values, rel_max):
    reference = np.array(values, np.float32)
    largest = np.abs(reference[np.isfinite(reference)]).max(initial=0)
    criterion = Criterion(rel_max=rel_max)
    if not largest:
        with pytest.raises(CaseError):
            gate(criterion, [{"y": reference}], {})
        return
    assert gate(criterion, [{"y": reference}], {}).threshold == rel_max * float(largest)


def test_one_pair_has_no_number():
    x = TensorName("x")
    one = ({x: "tuning/a"}, {TensorName("y"): "tuning/b"})
    made = Handed([one], {x: (2, 3)}, gate(Criterion(), [outputs(1.0)], {}))
    recipe = strong(tensorrt="11.1", profiles=(profile("x"),))
    text = tuning(recipe, made)["tune_engine.sh"]
    assert "--refPair" not in text
    assert "--skipInference" not in text
    made = Handed([one, one], {x: (2, 3)}, made.gate)
    assert "--refPair=1 --loadInputs=x:tuning/a" in tuning(recipe, made)["tune_engine.sh"]


def test_shapes_are_told_of_inputs_that_have_dynamic_axes():
    x, y = TensorName("x"), TensorName("y")
    pair = ({x: "a", y: "b"}, {TensorName("z"): "c"})
    made = Handed([pair], {x: (2, 3), y: (4,)}, gate(Criterion(), [outputs(1.0)], {}))
    dynamic = tuning(strong(tensorrt="11.1", profiles=(profile("x"),)), made)
    assert "--shapes=x:2x3 \\\n" in dynamic["tune_engine.sh"]
    assert "--shapes" not in tuning(strong(tensorrt="11.1"), made)["tune_engine.sh"]
    lengths = ShapeRange(min=(1,), opt=(2,), max=(3,))
    with pytest.raises(CaseError, match="values of input 'lengths' decide shapes"):
        tuning(strong(tensorrt="11.1", profiles=(profile("x", lengths=lengths),)), made)


def test_names_that_trtexec_cannot_be_told():
    odd = {TensorName("a,b"): "f"}
    made = Handed([(odd, {})], {TensorName("x"): (1,)}, gate(Criterion(), [outputs(1.0)], {}))
    with pytest.raises(CaseError, match="tensor 'a,b'"):
        tuning(strong(tensorrt="11.1"), made)
