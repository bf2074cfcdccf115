"""Judging candidates: references, criteria, batches, and what was not judged."""
