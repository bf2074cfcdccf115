"""halfwise: make low-precision inference right, and show it."""

from typing import TYPE_CHECKING

from halfwise import api

if TYPE_CHECKING:
    from halfwise.api import *  # noqa: F403

__all__ = api.__all__


def __getattr__(name: str) -> object:
    """Return what the library has; it is imported when it is first asked for."""
    if name not in __all__:
        raise AttributeError(name)
    return getattr(api, name)
