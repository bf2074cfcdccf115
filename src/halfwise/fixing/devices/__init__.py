"""One plan for several devices: the search with engines sees them as one.

`command` is the run in order; `run` the search and the table over all devices, `device` the part of
one kind; `builds` runs builds concurrently, `ahead` predicts what the search asks for next; `joint`
merges the candidates of all devices, `table` the offers and the verdicts.
"""
