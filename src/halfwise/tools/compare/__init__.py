"""Compare two computations of one model, tensor by tensor.

An error is *born* at a node if the node, run in FP32 on the candidate's own inputs, gives another
result. If it gives the same, the error is *inherited* from inputs beyond the tolerance, or
*amplified* if all inputs are within it. This needs no comparison of magnitudes along the way:
neither a small tensor nor an amplified error counts as a fault.

* `walk` provides the sides, tensors by name with their tolerance, and goes through the graph.
* `divergence` finds the first error and classifies the others.
* `engine_maker` builds engines on a worker, each a side.
"""
