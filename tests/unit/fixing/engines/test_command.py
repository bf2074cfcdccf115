import shlex

from halfwise import api
from tests import models


def test_the_engine_that_is_delivered_lies_in_the_run_folder(fake_worker, tmp_path):
    ill = models.layer_norm()
    command = shlex.join(fake_worker())
    out = tmp_path / "run"
    result = api.fix(
        ill.proto, dict(ill.inputs), out=out, target="tensorrt", trt_command=command, max_builds=3
    )
    assert result.run.verdict.passed
    assert result.run.engines
    assert result.run.engines.delivered
    assert (out / "model.engine").is_file()
