import pytest

from halfwise.errors import HalfwiseError
from halfwise.fixing.engines.devices import DevicesRun, _naming, _nearest, parts_of_offer
from halfwise.progress import Silent
from halfwise.tensorrt.failures import EngineFailed
from tests.unit.fixing.engines.test_joint_table import both, offer


def lost(number):
    found = offer(number, 1.0)
    row = found.row.model_copy(update={"verdict": None, "lost": True, "failure": "No answer."})
    return type(found)("fp16", found.candidate, 1.0, row)


def test_a_device_of_which_nothing_is_known_in_the_end_is_lost():
    devices = DevicesRun({}, Silent())
    (left,) = devices._left([both(offer(1, 1.0), lost(2))])
    assert list(parts_of_offer(left)) == ["orin"]
    assert left.passed
    assert devices.gone == {"a100": "No answer."}
    with pytest.raises(EngineFailed, match="lost before a correct engine"):
        devices._left([both(lost(1), lost(2))])


def test_an_engine_that_is_lost_is_not_yet_a_device():
    devices = DevicesRun({}, Silent())
    offers = [both(offer(1, 1.0), lost(2)), both(offer(3, 1.0), offer(4, 1.0))]
    assert [o.passed for o in devices._left(offers)] == [False, True]
    assert devices.gone == {}


def test_where_no_plan_passes_on_all_the_one_of_most_devices_is_told():
    good, bad = offer(1, 1.0), offer(2, 1.0, passed=False)
    none, half = both(bad, bad), both(good, bad)
    assert _nearest([none, half]) is half
    assert _nearest([none]) is None


def test_an_error_says_where():
    with pytest.raises(HalfwiseError, match="orin: No room"), _naming("orin"):
        raise EngineFailed("No room.", status="failed")
