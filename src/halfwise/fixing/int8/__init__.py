"""The rung below FP16: nodes that compute in INT8, and nodes left out of it."""
