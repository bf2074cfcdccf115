from halfwise.fixing.devices.together import Together, all_of
from halfwise.records import EngineFile, Failure
from tests.unit.reporting.engine_runs import engines
from tests.unit.reporting.runs import output_error, verdict


def failed(kind):
    failures = (Failure(kind=kind, names={"why": "so"}),)
    return verdict(passed=False).model_copy(update={"failures": failures})


def test_without_a_folder_engines_stay_where_they_were_built():
    here = EngineFile(sha256="a" * 64, bytes=3, side="here", path="gone")
    there = here.model_copy(update={"side": "worker", "path": "/cache/a"})
    delivering = engines(delivered=here)
    devices = {
        "a": delivering,
        "b": delivering.model_copy(update={"shares": "a"}),
        "c": engines(delivered=None, lost="No answer."),
    }
    found = Together(devices, {}).as_built({"a": there}).in_order(["c", "b", "a"])
    assert {name: e.delivered for name, e in found.engines.items()} == {
        "c": None,
        "b": there,
        "a": there,
    }
    assert list(found.engines) == ["b", "a", "c"]  # what is lost comes last


def test_all_pass():
    better = verdict(outputs={"y": output_error(rel_max=1e-4)})
    worse = verdict(outputs={"y": output_error(rel_max=1e-3)})
    assert all_of({"orin": better, "a100": worse}, {}) is worse


def test_each_failure_bears_the_device():
    found = all_of({"orin": verdict(), "a100": failed("not-run"), "h200": failed("not-run")}, {})
    assert not found.passed
    assert [f.under for f in found.failures] == [{"device": "a100"}, {"device": "h200"}]
    assert found.reasons[0].startswith("on a100: the engine does not run")


def test_a_lost_device_is_no_pass():
    found = all_of({"orin": verdict()}, {"a100": "The connection is lost."})
    assert not found.passed
    assert found.reasons == ("a100 was lost before its engine was judged: The connection is lost.",)
