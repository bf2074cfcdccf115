import json

import pytest

from halfwise.records import (
    BuildConfig,
    BuildOutcome,
    EngineFile,
    NetworkLayer,
    NodeName,
    Profile,
    Recipe,
    ShapeRange,
    TensorName,
    WorkerInfo,
)
from tests.unit.records.journey import any_of, assert_unchanged, drawn
from tests.unit.reporting.engine_runs import build, failed
from tests.unit.tensorrt.recipes import constraint, recipe


@pytest.mark.parametrize("kind", [EngineFile, NetworkLayer, ShapeRange, WorkerInfo])
@drawn
def test_goes_to_json_and_back(kind, data):
    assert_unchanged(data.draw(any_of(kind)))


def test_a_build_goes_to_json_and_back():
    shapes = {TensorName("x"): ShapeRange(min=(1, 4), opt=(2, 4), max=(3, 4))}
    values = {TensorName("n"): ShapeRange(min=(1,), opt=(2,), max=(3,))}
    profile = Profile(shapes=shapes, values=values)
    config = BuildConfig(
        model_sha256="0",
        typing="weak",
        low="bf16",
        tf32=True,
        keep=(NodeName("a"),),
        profiles=(profile,),
        tactic_sources=("CUBLAS",),
        outputs=(TensorName("y"),),
    )
    assert_unchanged(build(1, "mixed", config=config, unconstrained={NodeName("a"): "folded"}))
    assert_unchanged(failed(2))


def test_without_wishes_the_builder_decides_and_tf32_is_off():
    plain = BuildConfig(model_sha256="0", typing="weak")
    assert (plain.low, plain.tf32, plain.keep) == (None, False, ())
    assert (plain.workspace_bytes, plain.optimization_level, plain.tactic_sources) == (None,) * 3


@pytest.mark.parametrize(
    ("value", "told"), [("0", "disables TF32 in every engine"), ("1", "may enable TF32 in every")]
)
def test_what_an_override_of_tf32_means(value, told):
    info = WorkerInfo(name="w", command=("python3",))
    assert info.tf32_remark == ""
    assert told in info.model_copy(update={"tf32_override": value}).tf32_remark


def test_an_end_that_does_not_exist_is_refused():
    fields = {"number": 1, "purpose": "", "seconds": 0.0}
    config = {"model_sha256": "0", "typing": "weak"}
    with pytest.raises(ValueError, match="status"):
        BuildOutcome.model_validate({**fields, "config": config, "status": "vanished"})
    with pytest.raises(ValueError, match="typing"):
        BuildConfig.model_validate({**config, "typing": "loose"})


def test_a_recipe_is_read_back_from_its_json_and_from_one_of_fewer_fields():
    made = recipe(constraints=(constraint("a"),))
    assert Recipe.model_validate_json(made.model_dump_json()) == made
    fields = json.loads(made.model_dump_json())
    for name in ("notes", "plugins", "timing_cache", "tactic_sources", "schema_version"):
        del fields[name]
    assert Recipe.model_validate(fields).constraints == made.constraints
