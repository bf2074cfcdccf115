"""One plan for several devices: the search with engines, which sees them as one.

`command` is the run in order; `run` the search and the table over all devices, `device` what is one
kind's; `builds` builds there at the same time, `ahead` guesses what the search asks for next;
`joint` makes one candidate of those of all devices, `table` one offer, `together` one verdict;
`telling` is what the user sees meanwhile.
"""
