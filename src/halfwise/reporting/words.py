"""The words of every kind of fact: `words.toml`, a template for each kind in each group."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from halfwise.wording import filled

WORDS: Mapping[str, Mapping[str, str]] = tomllib.loads(
    Path(__file__).with_name("words.toml").read_text(encoding="utf-8")
)
"""Templates by group and kind, see `wording.filled`."""


def say(
    group: str, kind: str, facts: Mapping[str, object] | Iterable[tuple[str, object]] = ()
) -> str:
    """Return the words of a fact: the template of its kind, filled.

    Args:
        group: A table of `words.toml`.
        kind: An entry of it.
        facts: Names and numbers of the template; a record stands for its fields.

    Raises:
        KeyError: the template asks for a fact that is not given.
    """
    return filled(WORDS[group][kind], facts)
