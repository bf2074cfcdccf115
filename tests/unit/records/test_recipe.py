import json

from halfwise.records import Recipe
from tests.unit.tensorrt.recipes.made import constraint, recipe


def test_a_recipe_is_read_back_from_its_json_and_from_one_of_fewer_fields():
    made = recipe(constraints=(constraint("a"),))
    assert Recipe.model_validate_json(made.model_dump_json()) == made
    fields = json.loads(made.model_dump_json())
    for name in ("notes", "plugins", "timing_cache", "tactic_sources", "schema_version"):
        del fields[name]
    assert Recipe.model_validate(fields).constraints == made.constraints
