"""Attacks on the command line: one module per family, each with a list `ATTACKS`."""

FAMILIES = (
    "functions",
    "files",
    "surroundings",
    "lies",
    "small",
    "asked",
    "unjudged",
    "untested",
    "answers",
)
"""Modules of this package with attacks, in the order in which they run."""
