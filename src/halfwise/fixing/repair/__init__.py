"""Repair instead of keeping: change the graph, not the function, so that the low format is enough.

rule     the contract, what rules share that replace a part, and which guards a repair answers
scale, shift
         the rules: where each applies, the identity, what it changes
exponents
         the integer program behind scale
making   one node in place of several, and sums in parts; applies recorded repairs to a network, and
         records them in its metadata
proof    the repaired model against the original, on data and on widened data
moves    which of them are made: plans with them by price
"""
