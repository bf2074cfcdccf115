import pytest

from halfwise import errors
from halfwise.errors import PASSED, VERDICT_FAILED, HalfwiseError

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, HalfwiseError) and kind.__base__ is HalfwiseError
]


def test_exit_codes_are_told_apart():
    codes = {kind.exit_code for kind in KINDS}
    assert len(codes) == 6
    assert len({*codes, PASSED, VERDICT_FAILED}) == len(codes) + 2
    assert errors.KernelMissing.exit_code == errors.CaseError.exit_code


def test_a_traceback_never_reads_as_a_verdict_nor_an_error_as_ctrl_c():
    codes = {kind.exit_code for kind in KINDS} | {PASSED, VERDICT_FAILED}
    assert codes.isdisjoint({1, *range(126, 256)})


def test_the_codes_that_scripts_rely_on():
    assert {kind.__name__: kind.exit_code for kind in KINDS} == {
        "UsageError": 2,
        "CaseError": 3,
        "BackendMissing": 4,
        "BuildFailed": 5,
        "RunFailed": 6,
        "TookTooLong": 6,
        "RecordMismatch": 7,
    }
    assert (PASSED, VERDICT_FAILED) == (0, 10)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_its_message_and_hint(kind):
    error = kind("It is odd.", "Give another.")
    assert (error.message, error.hint) == ("It is odd.", "Give another.")
    assert str(error) == "It is odd.\nGive another."
    assert str(kind("It is odd.")) == "It is odd."
