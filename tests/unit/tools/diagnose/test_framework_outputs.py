import numpy as np
import pytest

from halfwise.case import Case
from halfwise.errors import CaseError
from halfwise.records import Criterion
from halfwise.tools.compare.command import recorded_tensors
from tests.unit.inputs.test_array_files import bomb
from tests.unit.tools.compare.copies import DATA, SAMPLES, network


@pytest.fixture
def case():
    return Case(network(), SAMPLES, SAMPLES.select(()), Criterion(), None, (), "")


def test_tensors_on_record(case, tmp_path):
    np.savez(tmp_path / "y.npz", y_out=DATA)
    tensors = recorded_tensors(case, tmp_path / "y.npz")
    assert np.array_equal(tensors[1]["y_out"], DATA[1])


def test_outputs_of_more_samples_than_the_inputs_have_are_refused(case, tmp_path):
    np.savez(tmp_path / "y.npz", y_out=np.concatenate([DATA, DATA]))
    with pytest.raises(CaseError, match="holds 'y_out' of 6 samples; the inputs are 3 samples"):
        recorded_tensors(case, tmp_path / "y.npz")
    np.savez(tmp_path / "rows.npz", y_out=np.concatenate([*DATA, *DATA]))
    with pytest.raises(CaseError, match="holds 'y_out' of 6 samples; the inputs are 3 samples"):
        recorded_tensors(case, tmp_path / "rows.npz")


def test_what_is_no_tensor_of_the_model_is_not_unpacked(case, tmp_path):
    path = bomb(tmp_path / "y.npz", (len(SAMPLES) << 24, 1, 8))
    with pytest.raises(CaseError, match="holds no tensor of the model: x"):
        recorded_tensors(case, path)
