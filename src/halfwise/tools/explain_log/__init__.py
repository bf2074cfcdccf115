"""Explain the log of an engine builder."""
