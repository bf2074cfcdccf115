"""What is not finite survives in a record."""

from math import inf

from halfwise.records import Proof, Repair


def test_a_repair_is_read_as_it_was_written() -> None:
    proof = Proof(samples={"widened": 1}, original=None, repaired=inf, equal=False, broken=2)
    repair = Repair(rule="scale", nodes=(), exponents={}, after=0.5, proof=proof)
    assert Repair.model_validate_json(repair.model_dump_json()) == repair
