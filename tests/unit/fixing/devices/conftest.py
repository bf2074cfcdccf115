"""What a run on one device is tested with."""

from tests.unit.fixing.engines.conftest import stage

__all__ = ["stage"]
