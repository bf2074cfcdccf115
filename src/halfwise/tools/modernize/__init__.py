"""Rewrite old operator patterns of a model with the operators its target has."""
