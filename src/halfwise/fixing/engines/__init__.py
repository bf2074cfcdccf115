"""The loop between emulation and engine.

`run` is a run in order; `search` decides what to build next, and `attempts` tries it; `builds`
builds and writes down; `measure` runs what was built; `moves` and `localise` say what to try when
an engine disappoints; `heldout` has the samples that judge, `table` the comparison at the end;
`delivery` chooses among its rows, `causes` tells why nothing lower passed, `conclude` sums up.
"""

from halfwise.fixing.engines.builds import Builds
from halfwise.fixing.engines.conclude import Proven
from halfwise.fixing.engines.failed import build_failed
from halfwise.fixing.engines.files import FP32_FILE, ModelFiles
from halfwise.fixing.engines.measure import Measure, with_shapes
from halfwise.fixing.engines.regime import regime
from halfwise.fixing.engines.run import EngineRun

__all__ = [
    "FP32_FILE",
    "Builds",
    "EngineRun",
    "Measure",
    "ModelFiles",
    "Proven",
    "build_failed",
    "regime",
    "with_shapes",
]
