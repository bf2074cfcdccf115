"""Loads functions from the user's Python files and reports their errors as the user's."""

import inspect
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from halfwise.errors import CaseError, HalfwiseError, UsageError

_numbers = itertools.count()


@dataclass(frozen=True)
class UserFunction:
    """A function of the user's, called like any other.

    Attributes:
        spec: `file.py:function` as given, for messages.
        path: The file.
        function: The function itself.
    """

    spec: str
    path: Path
    function: Callable[..., Any] = field(repr=False)

    # Any, because only the caller knows what this function is meant to return.
    def __call__(self, *arguments: object) -> Any:  # noqa: ANN401
        """Call the function.

        Raises:
            CaseError: It takes other arguments, or raised: with type, message and line.
        """
        self._check_arguments(arguments)
        with reported(self.spec, self.path):
            return self.function(*arguments)

    def stream(self) -> Iterator[Any]:
        """Call the function without arguments and yield what it yields or returns a list of.

        Raises:
            CaseError: As for a call, also while it yields; or what it returns is no iterable.
        """
        result = self()
        if not isinstance(result, Iterable) or isinstance(result, Mapping):
            raise CaseError(
                f"{self.spec} returned a {type(result).__name__}, expected a generator or a list "
                "of dictionaries.",
                "Yield one dictionary {input name: array} for each sample.",
            )
        with reported(self.spec, self.path):
            yield from result

    def _check_arguments(self, arguments: tuple[object, ...]) -> None:
        try:
            signature = inspect.signature(self.function)
        # Some callables written in C have no signature.
        except ValueError:
            return
        try:
            signature.bind(*arguments)
        except TypeError as error:
            raise CaseError(
                f"{self.spec} is declared with arguments {signature}, expected a function that "
                f"can be called with {len(arguments)} ({error}).",
                "Give the remaining arguments default values.",
            ) from error


def load_function(spec: str) -> UserFunction:
    """Load a function from a Python file; this runs the file.

    The file's folder is on `sys.path` while it is imported, so that it can import its neighbours.
    Each call imports the file anew.

    Args:
        spec: `file.py:function`.

    Raises:
        UsageError: The text has another form.
        CaseError: No such file or function, or the file raised while it was imported.
    """
    file, _, name = spec.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise UsageError(
            f"'{spec}' names no function, expected file.py:function.",
            "For example prep.py:load, for the function load in prep.py.",
        )
    path = Path(file)
    if not path.is_file():
        raise CaseError(
            f"{spec}: found no file {path}, expected a Python file.",
            f"Check the path; relative ones start at {Path.cwd()}.",
        )
    function = getattr(_import(path, spec), name, None)
    if not callable(function):
        what = "no function" if function is None else f"a {type(function).__name__}"
        raise CaseError(
            f"{spec}: found {what} called '{name}' in {path.name}, expected a function.",
            f"Define it at the top level of {path.name}.",
        )
    return UserFunction(spec, path, function)


@contextmanager
def reported(spec: str, path: Path) -> Iterator[None]:
    """Turn whatever the user's code raises into a CaseError that names type, message and line."""
    try:
        yield
    except HalfwiseError:
        raise
    # The code in here is the user's and may raise anything, a script's sys.exit() included.
    except (Exception, SystemExit) as error:
        message = str(error).strip().split("\n")[0]
        raised = f"{type(error).__name__}: {message}" if message else type(error).__name__
        raise CaseError(
            f"{spec} raised {raised} ({_place(error, path)}).",
            "Correct the function; it can be tried on its own in Python.",
        ) from error


def _import(path: Path, spec: str) -> ModuleType:
    name = f"halfwise_user_{next(_numbers)}_{path.stem}"
    loader = SourceFileLoader(name, os.fspath(path.resolve()))
    module = module_from_spec(ModuleSpec(name, loader, origin=loader.path))
    module.__file__ = loader.path
    # Dataclasses and pickling look their module up by name.
    sys.modules[name] = module
    folder = os.fspath(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        with reported(spec, path):
            loader.exec_module(module)
    except CaseError:
        del sys.modules[name]
        raise
    finally:
        # The file may have changed the path itself.
        with suppress(ValueError):
            sys.path.remove(folder)
    return module


def _place(error: BaseException, path: Path) -> str:
    """Name the last line of the user's own file that led to the error."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"{Path(error.filename or path).name}, line {error.lineno}"
    own = os.fspath(path.resolve())
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == own]
    return f"{path.name}, line {lines[-1]}" if lines else path.name
