"""Rewrite old spellings of a model to the operators that its target has."""
