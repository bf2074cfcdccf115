"""Make the sides of a comparison, and compare them.

`sources` makes models and emulations of them, `making` engines: their tensors are marked a few at a
time (`engines`) or shown where fusion leaves them (`unfused`). `search` finds the first divergence
in an engine with few builds.
"""

from halfwise.pipeline.comparing.engines import EngineSide
from halfwise.pipeline.comparing.making import EngineMaker
from halfwise.pipeline.comparing.search import look
from halfwise.pipeline.comparing.sources import all_low, emulated, reference

__all__ = ["EngineMaker", "EngineSide", "all_low", "emulated", "look", "reference"]
