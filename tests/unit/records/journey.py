"""Every record goes to JSON and back unchanged, whatever it holds."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from halfwise.records import Record


def drawn(test: Callable[..., None]) -> Callable[..., None]:
    """Give a test `data` that draws records."""
    return given(st.data())(test)


def any_of(kind: type[Record]) -> st.SearchStrategy[Any]:
    """Records of a kind with every field drawn, those with a default included."""
    return st.builds(kind, **dict.fromkeys(kind.model_fields, ...))


def assert_unchanged(record: Record) -> None:
    """Write the record as strict JSON, read it, and compare; NaN equals NaN here."""
    written = record.model_dump_json()
    json.loads(written, parse_constant=_refuse)
    again = type(record).model_validate_json(written)
    assert repr(again) == repr(record)
    assert again.model_dump_json() == written


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")
