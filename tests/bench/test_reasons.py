"""Reasons of refusals, from answers that are known."""

import pytest

from bench.reasons import Answer, conditions
from halfwise.graph.taken import Feature


def answers(*built: bool, **features: list[Feature]) -> list[Answer]:
    rows = zip(*features.values(), strict=True)
    names = [name.replace("_", " ") for name in features]
    return [
        Answer(dict(zip(names, row, strict=True)), b) for b, row in zip(built, rows, strict=True)
    ]


@pytest.mark.parametrize(
    ("asked", "when", "certain"),
    [
        # A type alone.
        (
            answers(True, False, False, type_of_input_0=["float", "int8", "bool"]),
            [{"type of input 0": ["bool", "int8"]}],
            True,
        ),
        # Two together: each alone is built.
        (
            answers(
                *(True, True, True, False),
                attribute_p=["a", "b", "a", "b"],
                type_of_input_0=["float", "float", "int8", "int8"],
            ),
            [{"attribute p": ["b"], "type of input 0": ["int8"]}],
            True,
        ),
        # Everything differs: nothing is certain.
        (
            answers(True, False, attribute_p=["a", "b"], type_of_input_0=["float", "int8"]),
            [{"attribute p": ["b"]}],
            False,
        ),
        (answers(True, True, attribute_p=["a", "b"]), [], False),
    ],
)
def test_a_reason_is_what_no_built_node_has(asked, when, certain):
    found = conditions(asked)
    assert [each.when for each in found] == when
    assert any(each.seen for each in found) is certain
