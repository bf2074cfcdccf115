"""How long evaluations may take, for the whole of a command."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from halfwise.emulation.bounded import limited
from halfwise.progress import Silent, Watcher

P = ParamSpec("P")
R = TypeVar("R")


def bounded(command: Callable[P, R]) -> Callable[P, R]:
    """Bound each evaluation of a command by its option `run_timeout`.

    The command's `watcher` is told of those that take long.
    """

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        given = cast(dict[str, Any], kwargs)
        watcher: Watcher = given.get("watcher") or Silent()
        with limited(given.get("run_timeout"), tell=watcher.note):
            return command(*args, **kwargs)

    return run
