"""Tensors stored times powers of two, without changing the function.

rules       what each operator asks of the exponents of what it reads and gives
relations   these for all nodes of a model, as linear equations
rescale     makes a model whose tensors have given exponents
"""

from halfwise.graph.scaling.relations import (
    Constant,
    Edge,
    Relation,
    Relations,
    completed,
    relations,
)
from halfwise.graph.scaling.rescale import in_place, multiples, rescale

__all__ = [
    "Constant",
    "Edge",
    "Relation",
    "Relations",
    "completed",
    "in_place",
    "multiples",
    "relations",
    "rescale",
]
