"""Loads and runs the user's code, and contains whatever it raises or prints."""

import contextlib
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from msgspec import Struct

from halfwise.errors import CaseError, UsageError
from halfwise.files import is_regular, no_file
from halfwise.wording import excerpt

RAISED = (Exception, SystemExit, GeneratorExit)
"""What reading a user's object may raise; KeyboardInterrupt may be Ctrl-C."""


@contextlib.contextmanager
def guarded(spec: str) -> Iterator[None]:
    """Turn anything that the user's code raises into a CaseError with type, message and line.

    Its output goes to standard error, as standard output is for results. NumPy's treatment of
    infinities is restored.

    Args:
        spec: `file.py:function`; the line in the message is from that file.

    Raises:
        CaseError: It raised anything but KeyboardInterrupt, even SystemExit.
    """
    try:
        with diverted(), np.errstate():
            yield
    except KeyboardInterrupt:
        raise
    # The code in here is the user's and may raise anything, including SystemExit.
    except BaseException as error:
        raise CaseError(
            f"{spec} raised {described(error)} ({_place(error, spec)}).",
            "Fix the function; call it in Python to try it.",
        ) from error


def described(error: BaseException) -> str:
    """Return an error's type and the first line of its message; its `__str__` may fail too."""
    try:
        lines = str(error).strip().splitlines()
    except BaseException:  # noqa: BLE001 - the user's, too
        lines = ["its message cannot be read"]
    name = excerpt(type(error).__name__)
    return f"{name}: {excerpt(lines[0])}" if lines else name


def _place(error: BaseException, spec: str) -> str:
    """Return the last line of the user's own file that led to the error."""
    path = Path(spec.rpartition(":")[0])
    if isinstance(error, SyntaxError) and isinstance(error.filename, str) and error.lineno:
        return f"{Path(error.filename).name}, line {error.lineno}"
    frames = traceback.walk_tb(error.__traceback__)
    # By name only: the code may have changed the working directory.
    lines = [line for f, line in frames if Path(f.f_code.co_filename).name == path.name]
    return f"{path.name}, line {lines[-1]}" if lines else path.name


@contextlib.contextmanager
def diverted(target: int = 2) -> Iterator[None]:
    """Send standard output to a file descriptor, below Python too: libraries write past it.

    What Python prints goes to standard error. Streams that are replaced meanwhile come back.
    """
    with contextlib.ExitStack() as restoring:
        restoring.enter_context(contextlib.redirect_stdout(sys.stderr))
        restoring.enter_context(contextlib.redirect_stderr(sys.stderr))
        with contextlib.suppress(OSError):
            kept = os.dup(1)
            restoring.callback(os.close, kept)
            restoring.callback(os.dup2, kept, 1)
            os.dup2(target, 1)
        yield


_numbers = itertools.count()
_END = object()


class UserFunction(Struct, frozen=True):
    """A function from the user's file, callable like any other.

    Attributes:
        spec: `file.py:function` as given, for messages.
        path: The file.
        function: The function itself.
    """

    spec: str
    path: Path
    function: Callable[..., Any]

    # Any, because only the caller knows what the function should return.
    def __call__(self, *arguments: object) -> Any:  # noqa: ANN401
        """Call the function.

        Raises:
            CaseError: It raised, as if it takes other arguments; with type, message and line.
        """
        with guarded(self.spec):
            return self.function(*arguments)

    def stream(self) -> Iterator[Any]:
        """Call the function without arguments and yield the items that it yields or returns.

        Raises:
            CaseError: As for a call, also while iterating; or the result is not iterable.
        """
        result = self()
        if not isinstance(result, Iterable) or isinstance(result, Mapping):
            raise CaseError(
                f"{self.spec} returned {type(result).__name__}; expected a generator or a list "
                "of dictionaries.",
                "Yield one dictionary {input name: array} per sample.",
            )
        with guarded(self.spec):
            items = iter(result)
        while True:
            with guarded(self.spec):
                item = next(items, _END)
            if item is _END:
                return
            yield item


def load_function(spec: str) -> UserFunction:
    """Load a function from a Python file, which runs the file.

    The file's folder is on `sys.path` during the import, so that it can import its neighbours. Each
    call imports the file again.

    Args:
        spec: `file.py:function`.

    Raises:
        UsageError: `spec` has another form.
        CaseError: No such file or function, or the file raised during import.
    """
    file, _, name = spec.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise UsageError(
            f"'{spec}' names no function; expected file.py:function.",
            "For example, give prep.py:load for the function load in prep.py.",
        )
    path = Path(file)
    if not is_regular(path):
        raise CaseError(
            no_file(path),
            f"Check the path; relative ones start at {Path.cwd()}.",
        )
    module = _import(path, spec)
    with guarded(spec):
        function = getattr(module, name, None)
    if not callable(function):
        what = "missing" if function is None else f"of type {type(function).__name__}"
        raise CaseError(
            f"'{name}' in {path.name} is {what}; expected a function.",
            f"Define it at the top level of {path.name}.",
        )
    return UserFunction(spec, path, function)


def _import(path: Path, spec: str) -> ModuleType:
    name = f"halfwise_user_{next(_numbers)}_{path.stem}"
    loader = SourceFileLoader(name, os.fspath(path.resolve()))
    module = module_from_spec(ModuleSpec(name, loader, origin=loader.path))
    module.__file__ = loader.path
    # Dataclasses and pickling look up their module by name.
    sys.modules[name] = module
    folder = os.fspath(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        with guarded(spec):
            loader.exec_module(module)
    except CaseError:
        sys.modules.pop(name, None)
        raise
    finally:
        # The file may have changed the path itself.
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
    return module
