"""What is not finite survives in a record."""

from math import inf

import pytest
from pydantic import ValidationError

from halfwise.records import NodeName, Place, Proof, Repair


def test_a_repair_is_read_as_it_was_written() -> None:
    proof = Proof(samples={"widened": 1}, original=None, repaired=inf, equal=False, broken=2)
    repair = Repair(rule="scale", nodes=(), exponents={}, after=0.5, proof=proof)
    assert Repair.model_validate_json(repair.model_dump_json()) == repair


def test_guards_of_older_records_are_read() -> None:
    older = '{"rule": "fold", "nodes": [], "guards": ["overflow at /Add at 3"]}'
    (place,) = Repair.model_validate_json(older).guards
    assert place == Place(kind="overflow", node=NodeName("/Add at 3"))
    with pytest.raises(ValidationError):
        Repair.model_validate_json(older.replace(" at ", " "))
