"""One plan for several devices: the search with engines sees them as one.

`command` is the run in order; `run` the search and the table over all devices, `device` the part of
one kind; `builds` runs builds concurrently; `joint` merges the candidates of all devices, `table`
the offers and the verdicts.
"""
