"""The loop between emulation and engine.

`run` is a run in order. `search` decides what to build next; `ddmin` says what to leave out,
`units` what to keep only as a whole, `tried` which build to continue from. `attempts` tries a plan
on the `workbench`, where `builds` builds and records engines and `measure` runs them. `proposals`
say what to try if an engine disappoints, `moves` what to try if the builder refuses, on which
`terms` (such as an `equivalent` model); `refusals` remembers what it refused. `prediction` is what
emulation expects. `early` judges engines while the run goes on; `table` is the final comparison and
chooses among its rows, which take turns in `race`; `speed` says what is slow. `conclude` sums up,
and `causes` says why nothing lower passed, given the `band` of errors that low precision explains.
Plans without repairs, or with INT8, are built `beside`.
"""
