"""Engines as judges of plans: the emulation proposes, engines decide.

`command` runs `fix` with one worker or several, `run` is a run in order. `plan` is what an engine
is built from, and what building it gave. A `device` is a worker with its FP32 engines; `attempts`
builds plans there on the `workbench`, where `builds` records builds and `measure` runs engines. The
`bench` judges a plan on all devices and remembers it; `search` says what to build next, from that
memory, from what the builder refused (`refusals`) and from what emulation predicts (`prediction`).
`table` is the final comparison, in which engines `race`, and chooses; `record` sums up; `delivery`
searches in the emulation meanwhile, and stores what was found.
"""
