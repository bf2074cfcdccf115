"""Makers of engines that have a fault in some nodes; TensorRT is the stand-in."""

import pytest

from halfwise.case import Case, EngineSettings, Settings
from halfwise.progress import Silent
from halfwise.records import Criterion
from halfwise.tensorrt.client import Worker
from halfwise.tools.compare.engine_maker import EngineMaker
from tests.unit.tools.compare.copies import SAMPLES, network


@pytest.fixture
def engines(fake_worker, tmp_path):
    """Make a maker of engines; options are those of the fake TensorRT."""
    opened = []

    def make(version="10.0.1", builds=6, **fake):
        worker = Worker("fake", fake_worker(version, **fake))
        opened.append(worker)
        worker.__enter__()
        case = Case(network(), SAMPLES, SAMPLES.select(()), Criterion(), None, (), "")
        settings = EngineSettings(max_builds=builds)
        folder = tmp_path / f"scratch-{len(opened)}"
        folder.mkdir()
        return EngineMaker(case, Settings(), settings, worker, folder, Silent())

    yield make
    for worker in opened:
        worker.__exit__(None, None, None)
