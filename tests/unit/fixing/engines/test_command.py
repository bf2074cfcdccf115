import shlex

import numpy as np

from halfwise import api
from tests.fake_tensorrt.regions import Wrong
from tests.unit.emulation.test_folding import exported


def test_a_wrong_fp32_engine_is_cured_by_fixing_shapes_and_folding_constants(fake_worker, tmp_path):
    command = shlex.join(fake_worker(wrong=[Wrong(nodes=("size",))]))
    inputs = {"x": np.random.default_rng(1).normal(size=(4, 3, 4)).astype(np.float32)}
    out = tmp_path / "run"
    result = api.fix(
        exported(), inputs, out=out, target="tensorrt", trt_command=command, max_builds=3
    )
    assert result.run.verdict.passed
    assert "settled" in {note.kind for note in result.run.provenance.notes}
    assert (out / "model.engine").is_file()


def test_with_shapes_of_the_user_an_engine_for_one_shape_is_not_what_was_asked_for(fake_worker):
    command = shlex.join(fake_worker(wrong=[Wrong(nodes=("size",))]))
    inputs = {"x": np.random.default_rng(1).normal(size=(4, 3, 4)).astype(np.float32)}
    shapes = ["x:1x3x4"]
    result = api.fix(
        *(exported(), inputs),
        target="tensorrt",
        trt_command=command,
        min_shapes=shapes,
        opt_shapes=shapes,
        max_shapes=shapes,
    )
    assert not result.run.verdict.passed
