"""The planted faults themselves: each is one edit of the source as it is, and compiles."""

from pathlib import Path

import pytest

from tests.mutations import MUTATIONS, places

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "halfwise"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_fault_is_one_edit_that_compiles(mutation):
    (file,) = places(mutation, PACKAGE)
    text = file.read_text(encoding="utf-8")
    compile(text.replace(mutation.old, mutation.new), file, "exec")
    assert all((PACKAGE.parents[1] / path).exists() for path in mutation.tests)


def test_there_are_twenty():
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 20
