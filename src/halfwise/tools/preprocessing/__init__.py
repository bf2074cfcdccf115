"""Compare two preprocessing pipelines by their results on the same samples.

In order of cost: `images` (axes, sample order, flips, letterboxing), `registration` (where images
lie in each other), `photometry`, `normalisation` and `tone` (channels, scale, mean, deviation,
rounding, clipping), `geometry` (fit, crop, padding), and, with raw images, `resizing` (each
pipeline's kernel). `plain` handles other inputs, `program` writes the transformation, `comparing`
runs them all. `hypotheses` lists what a second pipeline may do if only one is available.
"""

from halfwise.tools.preprocessing.comparing import FRACTIONS, UNDONE, compare_arrays
from halfwise.tools.preprocessing.hypotheses import Hypothesis, hypotheses
from halfwise.tools.preprocessing.program import code_of, transformation

__all__ = [
    "FRACTIONS",
    "UNDONE",
    "Hypothesis",
    "code_of",
    "compare_arrays",
    "hypotheses",
    "transformation",
]
