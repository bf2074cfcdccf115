"""A recipe as the files of each kind: shell command, Python script, C++ program and others.

Names in a model are whatever its author wrote, so everything that comes from a recipe is escaped
for the language that it is put into.
"""

from collections.abc import Callable, Mapping

from halfwise.records import Recipe
from halfwise.tensorrt.recipes import cpp, json_, polygraphy, python, trtexec
from halfwise.tensorrt.recipes.trtexec import shape_options

__all__ = ["KINDS", "shape_options"]

KINDS: Mapping[str, Callable[[Recipe], dict[str, str]]] = {
    "trtexec": trtexec.render,
    "python": python.render,
    "cpp": cpp.render,
    "polygraphy": polygraphy.render,
    "json": json_.render,
}
"""What turns a recipe into texts by file name, for each kind of recipe."""
