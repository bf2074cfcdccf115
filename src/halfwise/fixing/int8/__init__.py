"""The rung below FP16: what is computed from INT8, and which nodes are left out of it."""
