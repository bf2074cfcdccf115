"""A command line to call, and stand-ins for the library behind it."""

import sys

import pytest

from halfwise import api
from halfwise.cli import main


@pytest.fixture
def call(monkeypatch, capsys):
    """Run the command line; return its exit code, standard output and standard error."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["halfwise", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return call


@pytest.fixture
def answer(monkeypatch):
    """Put a stand-in in place of a library function; return the calls that it got."""

    def answer(name, reply):
        calls = []

        def stand_in(*arguments, **options):
            calls.append((arguments, options))
            if isinstance(reply, BaseException):
                raise reply
            return api.Result(reply, None, None) if name in ("fix", "verify") else reply

        monkeypatch.setattr(api, name, stand_in)
        return calls

    return answer
