"""The words of every kind of fact: `words.toml`, a template for each kind in each group."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from halfwise.wording import filled

WORDS: Mapping[str, Mapping[str, str]] = tomllib.loads(
    Path(__file__).with_name("words.toml").read_text(encoding="utf-8")
)
"""Templates by group and kind, see `wording.filled`."""
PRECISIONS: Mapping[str, str] = WORDS["precision"]
"""Names of formats, and of the rungs of a ladder."""


def say(group: str, kind: str, /, *sources: object, **facts: object) -> str:
    """Return the words of a fact: the template of its kind, filled.

    Args:
        group: A table of `words.toml`.
        kind: An entry of it.
        sources: Records and mappings with facts of the template.
        facts: Further facts by name, which override those of the sources.

    Raises:
        KeyError: the template asks for a fact that is not given.
    """
    return filled(WORDS[group][kind], *sources, facts)
