"""What lies in the run folder of a run with engines."""

import shlex

import numpy as np
import pytest

from halfwise import api
from halfwise.store import MODEL_FILE, engine_file, read_run
from tests.unit.emulation.test_settling import exported


@pytest.mark.parametrize("stored", [True, False])
def test_the_record_and_what_it_names_are_stored_if_there_is_a_folder(
    fake_worker, tmp_path, stored
):
    inputs = {"x": np.random.default_rng(1).normal(size=(4, 3, 4)).astype(np.float32)}
    out = tmp_path / "run" if stored else None
    command = shlex.join(fake_worker())
    result = api.fix(
        exported(), inputs, out=out, target="tensorrt", trt_command=command, max_builds=3
    )
    assert result.run.engines is not None
    assert result.run.engines.delivered
    if out is None:
        assert list(tmp_path.glob("run*")) == []
        return
    assert (out / MODEL_FILE).is_file()
    assert (out / engine_file()).is_file()
    assert read_run(out).engines == result.run.engines
