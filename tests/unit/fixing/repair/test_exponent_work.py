from halfwise.fixing.repair.exponent_work import Allowance


def test_a_program_has_to_fit_into_what_is_left_and_may_not_be_huge():
    assert Allowance(10).covers(10)
    assert not Allowance(10).covers(11)
    assert not Allowance(10**9).covers(10**6)
