from halfwise.fixing.engines.proposals import Budget


def test_a_budget_is_spent():
    budget = Budget(2)
    budget.take()
    assert budget.left == 1
    budget.interruption.ready = True
    assert budget.interruption.take()
    assert (budget.left, budget.interrupted) == (0, True)
    budget.take()
    assert not budget.interrupted
