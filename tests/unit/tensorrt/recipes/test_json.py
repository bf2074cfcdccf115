import json

from hypothesis import given

from halfwise.records import Recipe
from halfwise.tensorrt.recipes.json_ import render
from tests.unit.tensorrt.recipes.made import constraint, names, profile, recipe


@given(names())
def test_it_is_the_recipe(name):
    made = recipe(constraints=(constraint(name),), profiles=(profile(name),), run=name)
    text = render(made)["recipe.json"]
    assert json.loads(text)["constraints"][0]["node"] == name
    assert json.loads(text)["schema_version"] == 1
    assert Recipe.model_validate_json(text) == made
