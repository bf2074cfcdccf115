"""halfwise: make low-precision inference right, and show it."""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType
from typing import TYPE_CHECKING

from halfwise import api

if TYPE_CHECKING:
    from halfwise.api import *  # noqa: F403

__all__ = api.__all__

_UNUSED = (
    # What few runs need: others import these modules, not names of them.
    *("halfwise.fixing.repair.proof", "halfwise.reporting.view"),
    *("halfwise.targets.profiles", "halfwise.targets.runners"),
    # The second is the only module of its package that uses the first while it is imported.
    *("sympy", "onnx_ir._symbolic_shapes"),
    # SciPy asks NumPy for all that it has, and its optimisers for all of its geometry.
    *("numpy.f2py", "numpy.ma", "numpy.testing", "scipy.spatial"),
    "packaging.version",
)


class _Later:
    """Makes the first import of `_UNUSED` load nothing yet; any access to their content does."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in _UNUSED else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


sys.meta_path.insert(0, _Later())


def __getattr__(name: str) -> object:
    """Import a name of the library on first use."""
    if name not in __all__:
        raise AttributeError(name)
    return getattr(api, name)
