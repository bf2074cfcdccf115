"""Subjects of a diagnosis, healthy or with one fault; TensorRT is the stand-in."""

import pytest

from halfwise.case import Case, EngineSettings, Settings
from halfwise.progress import Silent
from halfwise.records import Criterion
from halfwise.tensorrt.client import Worker
from halfwise.tools.compare.engine_maker import EngineMaker
from halfwise.tools.diagnose.subject import Subject
from tests.unit.tools.compare.copies import SAMPLES, network

PLAIN = Settings()


@pytest.fixture
def subject(tmp_path, fake_worker):
    """Make a subject; options of the fake TensorRT give it engines."""
    opened = []

    def make(
        model=None,
        samples=SAMPLES,
        notes=(),
        real=True,
        criterion=None,
        fake=None,
        settings=PLAIN,
        **how,
    ):
        whole = model or network()
        criterion = criterion or Criterion()
        case = Case(whole, samples, samples.select(()), criterion, None, notes, "", real=real)
        engines = None
        if fake is not None:
            worker = Worker("fake", fake_worker(fake.pop("version", "10.0.1"), **fake))
            opened.append(worker)
            worker.__enter__()
            folder = tmp_path / f"scratch-{len(opened)}"
            folder.mkdir()
            engines = EngineMaker(case, Settings(), EngineSettings(), worker, folder, Silent())
        run = tmp_path / "run"
        run.mkdir(exist_ok=True)
        return Subject(
            case=case, settings=settings, folder=run, watcher=Silent(), engines=engines, **how
        )

    yield make
    for worker in opened:
        worker.__exit__(None, None, None)
