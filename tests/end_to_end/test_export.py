"""From `fix --target tensorrt` to a recipe that builds the same engine again, in the stand-in."""

import json
import shlex
import subprocess

import onnx
import pytest

from halfwise import api
from tests import models
from tests.fake_tensorrt.plan import MAGIC


@pytest.mark.slow
@pytest.mark.parametrize(("version", "typing"), [("8.6.1", "weak"), ("10.0.1", "strong")])
def test_the_script_builds_the_engine_that_was_judged(version, typing, fake_worker, tmp_path):
    ill = models.conv_chain()
    onnx.save(ill.proto, tmp_path / "user.onnx")
    python = fake_worker(version)
    run = tmp_path / "run"
    api.fix(
        tmp_path / "user.onnx",
        dict(ill.inputs),
        out=run,
        target="tensorrt",
        trt_command=shlex.join(python),
        builds=1,
        no_repair=typing == "weak",  # with what is kept, which constraints are made of
    )
    exported = api.export(run, "python", out=run)
    recipe = exported.recipe
    assert (recipe.tensorrt, recipe.typing) == (version, typing)
    kept = {constraint.node for constraint in recipe.constraints}
    assert kept == (ill.kept if typing == "weak" else set())
    script = [*python, run / "build_engine.py"]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    assert f"engine {run / 'rebuilt.engine'}" in done.stdout
    assert decided(run / "rebuilt.engine") == decided(run / "model.engine")


def decided(engine):
    """Return what the stand-in's builder decided, but for the build's number, and the model."""
    data = engine.read_bytes().removeprefix(MAGIC)
    size = int.from_bytes(data[:4], "big")
    plan = json.loads(data[8 : 8 + size])
    plan.pop("number")
    return plan, data[8 + size :]
