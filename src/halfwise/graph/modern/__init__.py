"""Decomposed operators, read exactly and fused back into one node.

`halfwise.graph.patterns` finds the nodes of a pattern, however it is written. Here a pattern is
read as a formula: axes, eps, weight and bias. Patterns that cannot be read this way stay.
"""
