from pathlib import Path

import pytest

from halfwise.errors import UsageError
from halfwise.records import Criterion


def test_it_judges_an_engine(engines):
    maker = engines(broken={"y": 2})
    engine, outputs = maker.built("fp32"), maker.side("fp32").recorded
    assert maker.judge(engine, outputs, Criterion(snr_db=60)).passed
    wrong = [{name: array / 2 for name, array in o.items()} for o in outputs]
    assert not maker.judge(engine, wrong, Criterion(snr_db=60)).passed


def test_engines_do_not_stay_on_the_worker(engines):
    maker = engines()
    paths = [Path(maker.built(kind).path) for kind in ("fp32", "tf32")]
    with pytest.raises(KeyboardInterrupt), maker.lasting():
        raise KeyboardInterrupt  # the worker may be at a build, and would answer after it
    assert all(path.is_file() for path in paths)
    with pytest.raises(UsageError), maker.lasting():
        raise UsageError("An error.")
    assert not any(path.is_file() for path in paths)


def test_another_case_on_the_same_worker(engines):
    maker = engines()
    other = maker.of(maker.case, 60.0)
    assert other.case is maker.case
    assert other.build("fp32").status == "built"
