"""One plan for several devices: the search with engines, which sees them as one.

`command` is the run in order; `run` the search and the table over all devices, `device` what is one
kind's, `builds` what builds there at the same time, `ahead` what of it is a
guess; `joint` makes one candidate of those of all
devices, `table` one offer, `together` one verdict; `telling` is what the user sees meanwhile.
"""
