"""Compares two preprocessing pipelines by what they make of the same samples.

In the order of cost: `images` (axes, order of samples, flips, letterboxing), `registration` (where
the images lie in each other), `photometry`, `normalisation` and `tone` (channels, scale, mean,
deviation, rounding, clipping), `geometry` (fit, crop, padding), and, with raw images, `resizing`
(which kernel each pipeline has). `plain` does what is no image, `program` writes the
transformation, `comparing` is the whole. `hypotheses` lists what a second pipeline may do, where
only one is at hand.
"""

from halfwise.tools.preprocessing.comparing import compare_arrays
from halfwise.tools.preprocessing.hypotheses import Hypothesis, hypotheses
from halfwise.tools.preprocessing.program import code_of, transformation

__all__ = ["Hypothesis", "code_of", "compare_arrays", "hypotheses", "transformation"]
