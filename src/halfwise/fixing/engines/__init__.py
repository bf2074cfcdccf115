"""The loop between emulation and engine.

`run` is a run in order; `search` decides what to build next, `ddmin` what to leave out, `units`
what only as a whole, `tried` what to go on from; `attempts` tries it on the `workbench`, where
`builds` builds and writes down and `measure` runs what was built. `proposals` say what to try when
an engine disappoints, `moves` when the builder refuses, on which `terms` (`rewritten` is one),
and `refusals` remember it; `prediction` is what emulation expects; `heldout` has the samples that
judge, `early` does so while the run goes on; `table` is the comparison at the end and chooses among
its rows, which `race` lets take turns; `speed` tells what is slow; `conclude` sums up, and `causes`
tell why nothing lower passed, by the `band` of errors that low precision explains. Of a repaired
model, what is known without repairs is built `beside`.
"""

from halfwise.fixing.engines.builds import Builds, build_failed
from halfwise.fixing.engines.conclude import Proven
from halfwise.fixing.engines.equivalent import BUILT_FILE, equivalent
from halfwise.fixing.engines.measure import Measure, with_shapes
from halfwise.fixing.engines.regime import regime
from halfwise.fixing.engines.run import EngineRun
from halfwise.fixing.engines.workbench import FP32_FILE, Workbench

__all__ = [
    "BUILT_FILE",
    "FP32_FILE",
    "Builds",
    "EngineRun",
    "Measure",
    "Proven",
    "Workbench",
    "build_failed",
    "equivalent",
    "regime",
    "with_shapes",
]
