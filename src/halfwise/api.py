"""The library: the commands as functions.

Each is imported on first use, so no command waits for the imports of another.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from halfwise.memory import count_as_old, few_collections

if TYPE_CHECKING:
    from halfwise.declarations import ChooseOptions, Options
    from halfwise.fixing.again import choose
    from halfwise.fixing.command import convert_float_to_float16, fix
    from halfwise.fixing.result import Result
    from halfwise.linting import lint
    from halfwise.observing.reference import observe
    from halfwise.store import report
    from halfwise.tools.build import build, build_ahead, inspect
    from halfwise.tools.compare.command import compare
    from halfwise.tools.diagnose.command import diagnose
    from halfwise.tools.doctor import doctor
    from halfwise.tools.explain_log import explain_log
    from halfwise.tools.export import Exported, export
    from halfwise.tools.ladder import ladder
    from halfwise.tools.migrate import migrate
    from halfwise.tools.reduce import reduce
    from halfwise.tools.verify.command import verify
    from halfwise.tools.weights import Weights, export_weights

__all__ = [
    "ChooseOptions",
    "Exported",
    "Options",
    "Result",
    "Weights",
    "build",
    "build_ahead",
    "choose",
    "compare",
    "convert_float_to_float16",
    "diagnose",
    "doctor",
    "explain_log",
    "export",
    "export_weights",
    "fix",
    "inspect",
    "ladder",
    "lint",
    "migrate",
    "observe",
    "reduce",
    "report",
    "verify",
]

_MODULES = {
    "ChooseOptions": "declarations",
    "Exported": "tools.export",
    "Options": "declarations",
    "Result": "fixing.result",
    "Weights": "tools.weights",
    "build": "tools.build",
    "build_ahead": "tools.build",
    "choose": "fixing.again",
    "compare": "tools.compare.command",
    "convert_float_to_float16": "fixing.command",
    "diagnose": "tools.diagnose.command",
    "doctor": "tools.doctor",
    "explain_log": "tools.explain_log",
    "export": "tools.export",
    "export_weights": "tools.weights",
    "fix": "fixing.command",
    "inspect": "tools.build",
    "ladder": "tools.ladder",
    "lint": "linting",
    "migrate": "tools.migrate",
    "observe": "observing.reference",
    "reduce": "tools.reduce",
    "report": "store",
    "verify": "tools.verify.command",
}


def __getattr__(name: str) -> object:
    """Import a name on first use."""
    if name not in _MODULES:
        raise AttributeError(name)
    with few_collections():
        found: object = getattr(import_module(f"halfwise.{_MODULES[name]}"), name)
        count_as_old()
    return found
