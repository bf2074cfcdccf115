from dataclasses import replace

import pytest

from halfwise.fixing.engines.attempts import Candidate
from halfwise.fixing.engines.device import joint
from halfwise.fixing.engines.devices import (
    all_of,
    joint_offer,
    only_on_offers,
    own_offer,
    parts_of_offer,
)
from halfwise.fixing.engines.table import Offer, choose
from halfwise.records import Failure
from halfwise.reporting.remarks import reasons
from tests.unit.casing import names
from tests.unit.fixing.engines.test_joint import search
from tests.unit.reporting.engine_runs import result
from tests.unit.reporting.runs import output_error, verdict


def offer(number, median, *, excess=0.5, passed=True, medians=()):
    row = result("mixed", number, median, verdict=verdict(passed=passed))
    assert row.latency is not None
    timed = row.latency.model_copy(update={"medians": medians})
    row = row.model_copy(update={"latency": timed})
    candidate = Candidate(names("a"), "tried", row.build, excess, timed)
    return Offer("fp16", candidate, 1.0, row)


def both(orin, a100):
    parts = {"orin": orin, "a100": a100}
    return joint_offer(parts, joint({n: o.candidate for n, o in parts.items()}))


def test_an_offer_passes_where_each_does():
    good, failed, beyond = offer(1, 1.0), offer(2, 1.0, passed=False), offer(3, 1.0, excess=2.0)
    assert both(good, good).passed
    assert not both(good, failed).passed
    assert not both(good, beyond).known
    # Its row is that of the device where it is worst.
    assert both(good, failed).row.build.number == 2


def test_what_passes_on_one_device_alone_is_known():
    good, failed = offer(1, 1.0), offer(2, 1.0, passed=False)
    seen = search(good.candidate)
    assert own_offer(both(good, failed), "orin", seen).elsewhere
    assert not own_offer(both(good, failed), "a100", seen).elsewhere
    assert not own_offer(both(good, good), "orin", seen).elsewhere
    # What is not allowed, since it fails elsewhere, is there; what a rule forbids is nowhere.
    barred = both(replace(good, allowed=False), failed)
    assert own_offer(barred, "orin", seen).elsewhere
    assert not own_offer(barred, "orin", replace(seen, ruled=names("z"))).elsewhere


def test_the_fastest_over_all_devices_is_chosen():
    even = both(offer(1, 2.0, medians=(2.0,) * 8), offer(1, 20.0, medians=(20.0,) * 8))
    # 1.5 times as slow on the fast device, 3 times as fast on the slow one.
    other = both(offer(2, 3.0, medians=(3.0,) * 8), offer(2, 6.7, medians=(6.7,) * 8))
    assert other.milliseconds == pytest.approx((3 * 6.7) ** 0.5)
    assert choose([even, other], "speed") is other
    assert even.row.latency.medians == pytest.approx((40**0.5,) * 8)


def test_what_was_not_timed_on_one_device_has_no_time():
    untimed = offer(1, 1.0)
    row = untimed.row.model_copy(update={"latency": None})
    assert both(Offer("fp16", untimed.candidate, 1.0, row), offer(2, 1.0)).row.latency is None


def test_without_a_lost_device():
    (left,) = only_on_offers({"orin"}, [both(offer(1, 1.0), offer(2, 1.0, passed=False))])
    assert left.passed
    assert list(parts_of_offer(left)) == ["orin"]


def failed(kind):
    failures = (Failure(kind=kind, names={"why": "so"}),)
    return verdict(passed=False).model_copy(update={"failures": failures})


def test_all_pass():
    better = verdict(outputs={"y": output_error(rel_max=1e-4)})
    worse = verdict(outputs={"y": output_error(rel_max=1e-3)})
    assert all_of({"orin": better, "a100": worse}, {}) is worse


def test_each_failure_bears_the_device():
    found = all_of({"orin": verdict(), "a100": failed("not-run"), "h200": failed("not-run")}, {})
    assert not found.passed
    assert [f.under for f in found.failures] == [{"device": "a100"}, {"device": "h200"}]
    assert reasons(found.failures)[0].startswith("on a100: the engine does not run")


def test_a_lost_device_is_no_pass():
    found = all_of({"orin": verdict()}, {"a100": "The connection is lost."})
    assert not found.passed
    assert reasons(found.failures) == (
        "a100 was lost before its engine was judged: The connection is lost.",
    )
