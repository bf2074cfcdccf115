"""Engines as judges of plans: the emulation proposes, engines decide.

`command` runs `fix` with one worker or several, and stores what was found; `run` is a run in order.
`plan` is what an engine is built from, and what building it gave. A `device` builds plans after its
FP32 engines, and records builds; `measure` runs engines. `search` judges a plan on all devices,
remembers it, and says what to build next. In the final table engines take turns, the fastest that
passes is delivered, and `run` sums up.
"""
