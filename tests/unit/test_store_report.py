import pytest

from halfwise.errors import UsageError
from halfwise.records import replace
from halfwise.store import report, write_run
from tests.unit.reporting.engine_runs import engines
from tests.unit.reporting.runs import run, verdict


def on(name, *, passed):
    found = engines(verdict=verdict(passed=passed))
    return replace(found, worker=replace(found.worker, name=name))


def test_one_device_of_several(tmp_path):
    both = replace(
        run(kind="fix", verdict=verdict(passed=False)),
        engines=on("orin", passed=True),
        further=(on("a100", passed=False),),
    )
    write_run(tmp_path, both)
    assert report(tmp_path) == both
    orin = report(tmp_path, trt_worker="orin")
    assert orin.verdict.passed
    assert [e.worker.name for e in orin.devices] == ["orin"]
    assert not report(tmp_path, trt_worker="a100").verdict.passed
    with pytest.raises(UsageError, match="has no device h200: orin, a100"):
        report(tmp_path, trt_worker="h200")
