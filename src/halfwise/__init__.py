"""halfwise: make low-precision inference right, and show it."""

from typing import TYPE_CHECKING

from halfwise import api

if TYPE_CHECKING:
    from halfwise.api import *  # noqa: F403

__all__ = api.__all__


def __getattr__(name: str) -> object:
    """Import a name of the library on first use."""
    if name not in __all__:
        raise AttributeError(name)
    return getattr(api, name)
