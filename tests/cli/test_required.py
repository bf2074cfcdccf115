"""The option that asks for a gain is one of `fix` and `verify` alone."""

import inspect

import pytest

from halfwise.cli import build, diagnose, fix, verify


@pytest.mark.parametrize(
    ("command", "taken"), [(fix, True), (verify, True), (diagnose, False), (build, False)]
)
def test_who_takes_it(command, taken):
    assert ("require_worth" in inspect.signature(command.command).parameters) is taken
