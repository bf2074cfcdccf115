"""Precision constraints in trtexec's notation: read, checked against a model, corrected."""
