"""Storing tensors multiplied by powers of two, without changing the model's function.

rules       what each operator requires of the exponents of its inputs and outputs
relations   these requirements for all nodes of a model, as linear equations
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
