"""Operators that were written out, read exactly and put back as one node.

`halfwise.graph.patterns` finds the nodes of a pattern, whatever its spelling. Here a pattern is
read as a formula: axes, eps, weight and bias. What cannot be read so is left alone.
"""
