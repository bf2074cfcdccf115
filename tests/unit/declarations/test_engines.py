from pathlib import Path
from typing import get_args

from msgspec.structs import fields

from halfwise.case import EngineSettings
from halfwise.declarations import EngineOptions, Options, default
from halfwise.declarations.option import shell_type
from halfwise.records import Typing


def test_words_are_those_of_the_records():
    assert shell_type(EngineOptions.__annotations__["typing"]) == Typing
    assert get_args(Typing) == ("weak", "strong")


def test_settings_are_as_declared():
    named = [f for f in fields(EngineSettings) if f.name in EngineOptions.__annotations__]
    assert len(named) >= 8
    for field in named:
        assert field.default in (default(field.name), False)


def test_what_a_shell_gives():
    declared = Options.__annotations__
    assert get_args(shell_type(declared["ort_library"]))[0] == Path | str
    for name in ("workspace", "tactic_sources", "start_from", "labels", "heldout"):
        assert shell_type(declared[name]) is str
