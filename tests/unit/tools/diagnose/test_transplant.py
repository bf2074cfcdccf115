import pytest

from halfwise.records import BuildConfig, BuildOutcome, NodeName
from halfwise.tools.compare.sides import reference
from halfwise.tools.diagnose.localise import Spent
from halfwise.tools.diagnose.transplant import OFF, Transplants, most_builds, symptom_of
from tests.fake_tensorrt.faults import Fault
from tests.fake_tensorrt.regions import Region, Wrong


def transplants(made, **changed):
    right = reference(made.case.network, made.samples, made.settings)
    return Transplants(made.engines, "fp32", right, 0, OFF, 60.0, **changed)


def part(*names):
    return frozenset(map(NodeName, names))


def test_how_many_builds_may_be_used():
    assert [most_builds(n) for n in (1, 50, 500)] == [4, 15, 21]


def test_one_engine_answers_for_parts_beside_each_other_and_once(subject):
    asked = transplants(subject(fake={"wrong": [Wrong(nodes=("b",), size=0.5)]}))
    parts = [part("a"), part("b", "centre"), part("y")]
    assert asked.ask(parts) == [False, True, False]
    assert asked.ask(parts[1:]) == [True, False]
    assert asked.builds == 2
    assert asked.errors[part("y")] < 1e-5 < asked.errors[part("b", "centre")]
    assert asked.alone(part("b", "centre"))
    assert asked.alone(part("b", "centre"))
    assert asked.builds == 3


def test_roundings_that_a_part_amplifies_are_no_fault(subject):
    """The mean of what has none: nothing but roundings, so any error is as large as the result."""
    asked = transplants(subject(fake={}))
    assert asked.ask([part("still")]) == [False]
    assert asked.ask([part("centre", "still")]) == [False]


def test_the_model_with_true_values_fed_in(subject):
    asked = transplants(subject(fake={"wrong": [Wrong(nodes=("b",), size=0.5)]}))
    wrong, error = asked.without([part("b")])
    assert (wrong, error < 1e-5) == (False, True)
    wrong, error = asked.without([part("c")])
    assert (wrong, error > 1e-3) == (True, True)


def test_a_part_without_an_engine_is_told_from_the_others(subject):
    fault = Fault("build", "foreign", region=Region(nodes=("y",)))
    asked = transplants(subject(fake={"faults": [fault]}))
    parts = [part("a"), part("b"), part("e"), part("y")]
    # Halves are tried once: of the one that holds it nothing is known.
    assert asked.ask(parts) == [False, False, None, None]
    assert asked.builds == 4


def test_the_last_build_is_kept_for_the_proof(subject):
    asked = transplants(subject(fake={}), builds=9)
    assert asked.most == 10
    with pytest.raises(Spent):
        asked.ask([part("a")])
    asked.without([part("a")])
    with pytest.raises(Spent):
        asked.without([part("a")])


def test_builds_end_alike_where_status_and_errors_are():
    def ended(status, *log):
        config = BuildConfig(model_sha256="", typing="weak")
        return symptom_of(
            BuildOutcome(number=1, purpose="", status=status, config=config, seconds=1.0, log=log)
        )

    line = "[E] Error Code 10: Could not find any implementation for node {ForeignNode[%s...z]}."
    assert ended("failed", line % "a") == ended("failed", line % "b")
    assert ended("failed", line % "a") != ended("failed", "[E] Error Code 1: out of memory")
    assert ended("crashed") != ended("failed")


def test_a_fault_where_the_result_is_read_and_not_given_out(subject):
    fault = Wrong(nodes=("b",), unless="touched", size=0.5)
    asked = transplants(subject(fake={"wrong": [fault]}))
    assert asked.ask([part("b")]) == [False]
    assert asked.inside(part("b")) is True
    assert asked.inside(part("c")) is False
    assert asked.builds == 4
