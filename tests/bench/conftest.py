"""A folder of a tiny model with its inputs."""

import numpy as np
import onnx
import pytest

from tests.unit.fixing.engines.test_prediction import scaled


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "scaled"
    made.mkdir()
    onnx.save(scaled().proto, made / "model.onnx")
    np.savez(made / "inputs.npz", **scaled().inputs)  # type: ignore[arg-type]
    return made
