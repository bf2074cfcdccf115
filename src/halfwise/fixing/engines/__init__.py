"""The loop between emulation and engine.

`command` runs `fix` with one worker or several. `run` is a run in order, `devices` one on several
devices, which `device` shows to the search as one. `search` decides what to build next; `attempts`
tries a plan on the `workbench`, where `builds` builds and records engines and `measure` runs them.
`proposals` say what to try if an engine disappoints, `moves` what to try if the builder refuses.
`prediction` is what emulation expects. `table` is the final comparison and chooses among its rows,
which take turns in `race`. `conclude` judges engines while the run goes on, and sums up; `delivery`
searches in the emulation meanwhile, and stores what was found.
"""
