"""Defers modules that a dependency imports but halfwise does not need, until they are used.

`onnx_ir` uses SymPy for arithmetic on symbolic sizes: 33 MiB, and two thirds of its own import
time.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

# The second is the only module of its package that uses the first while it is imported.
_UNUSED = ("sympy", "onnx_ir._symbolic_shapes")


class _Later(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in _UNUSED else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def defer_unused() -> None:
    """Make the first import of these modules in this process load nothing yet.

    A later import loads them, and so does any access to their content.
    """
    if not any(isinstance(finder, _Later) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Later())
