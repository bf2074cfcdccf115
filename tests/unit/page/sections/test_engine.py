from typing import Any

from halfwise.page.data import script_json
from halfwise.page.engines import engine
from halfwise.records import GivenEngine
from tests.unit.page.test_document import stored
from tests.unit.reporting.engine_runs import build, engines, latency, proof
from tests.unit.reporting.runs import verdict


def data(**changed: Any) -> Any:
    section = engine(stored(**changed))
    assert section is not None
    script_json(section.data)
    return section.data


def test_every_device_has_its_engines_and_the_delivered_one_is_marked() -> None:
    found = engines(emulated=verdict())
    one, other = data(engines=found, further=(engines(delivered=None, results=()),))["devices"]
    assert one["about"] == "TensorRT 8.6.0 on NVIDIA H200"
    names = [each["engine"] for each in one["engines"]]
    assert (names[-1], one["delivered"]) == ("mixed", 3)
    error = next(iter(verdict().outputs.values()))
    (row,) = one["outputs"]
    assert row[1:] == [error.max_abs, error.max_abs, error.snr_db, error.snr_db]
    assert (other["engines"], other["delivered"], other["outputs"]) == ([], None, [])


def test_the_users_own_engine_has_its_layers_and_its_log() -> None:
    made = engines()
    file = made.delivered
    assert file is not None
    given = GivenEngine(
        worker=made.worker,
        engine=file,
        profiles=(),
        shapes=(),
        latency=latency(1.0),
        build=build(1, "given", log=("warning: Something that nobody knows.",)),
        proof=proof(),
    )
    (one,) = data(given_engine=given)["devices"]
    assert [each["engine"] for each in one["engines"]] == ["your engine"]
    assert one["log"]["rows"][0][0] == "warning"
    bare = given.model_copy(update={"build": None, "proof": None})
    (one,) = data(given_engine=bare)["devices"]
    assert (one["engines"], one["log"]["rows"]) == ([], [])


def test_a_run_without_engines_has_no_such_section() -> None:
    assert engine(stored()) is None
