"""Plan: which nodes stay in FP32. Pure, given a function that evaluates an assignment."""
