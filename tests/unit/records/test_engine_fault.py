from math import inf

from hypothesis import given

from halfwise.records import EngineDiagnosis, EngineFault, NodeName
from tests.unit.records.journey import any_of, assert_unchanged


@given(any_of(EngineDiagnosis))
def test_they_survive_json(record):
    assert_unchanged(record)


def diagnosis(**changed):
    return EngineDiagnosis(symptom="outputs", sample="s", searched=4, limit_db=60.0, **changed)


def test_a_kernel_is_blamed_where_nodes_are_wrong_on_true_inputs_alone():
    assert diagnosis().verdict == "unknown"
    fault = EngineFault(operators=("GRU",), places=((NodeName("a"),),), snr_db=-inf)
    assert diagnosis(faults=(fault,)).verdict == "kernel"
