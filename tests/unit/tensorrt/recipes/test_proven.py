import pytest

from halfwise.tensorrt.recipes.programs import facts
from halfwise.tensorrt.recipes.proven import recipe_of
from tests.unit.reporting.engine_runs import build
from tests.unit.tensorrt.recipes.test_recipe import config, sketch


def test_all_that_decides_is_that_of_the_build():
    how = config(tf32=True, optimization_level=2, tactic_sources=("CUDNN",))
    made = recipe_of(
        build(3, "mixed", config=how),
        sketch(),
        "model.fp32.onnx",
        {"model.fp32.onnx": "ab" * 32},
        rung="fp16",
        tensorrt="8.6.1",
        run="run.proven",
    )
    assert [constraint.node for constraint in made.constraints] == ["pow"]
    assert (made.low, made.tf32, made.optimization_level) == ("fp16", True, 2)
    assert (made.model, made.tactic_sources, made.tensorrt) == (
        "model.fp32.onnx",
        ("CUDNN",),
        "8.6.1",
    )


@pytest.mark.parametrize(
    ("rung", "words"), [("tf32", "all FP32"), ("fp16", "the Casts in the ONNX file set")]
)
def test_only_what_is_low_has_casts(rung, words):
    how = config(typing="strong", low=None, keep=(), tf32=True)
    made = recipe_of(
        build(3, "any", config=how),
        sketch(),
        "model.onnx",
        {},
        rung=rung,
        tensorrt="11.4.0",
        run="run.proven",
    )
    assert f"strongly typed: {words}" in facts(made)[0]
