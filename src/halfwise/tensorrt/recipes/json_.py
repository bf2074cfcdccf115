"""A recipe as JSON, for programs."""

from halfwise.records import Recipe


def render(recipe: Recipe) -> dict[str, str]:
    """Return the recipe's fields as JSON; `schema_version` tells their version."""
    return {"recipe.json": recipe.model_dump_json(indent=2) + "\n"}
