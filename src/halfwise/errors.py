"""The error tree. Every error ends the command with a message, a hint and an exit code.

HalfwiseError
├── UsageError      2   the command line or an option does not make sense
├── CaseError       3   the model, the inputs or the rules cannot be used
├── BackendMissing  4   a required library or device is missing
├── BuildFailed     5   the rewritten model or an engine could not be made
├── RunFailed       6   a model that was loaded failed while running
├── TookTooLong     6   it did not end in time, more than once
└── RecordMismatch  7   a run folder or record is damaged, or of another version or model

0 means passed and 10 that the verdict failed or a fault was found. 1 stays free: an uncaught
traceback exits with 1, and a crash must never read as a verdict. Out of tolerance, NaN and "no fix
found" are values in the verdict, not errors.
"""

from typing import ClassVar, Self

PASSED = 0
VERDICT_FAILED = 10


class HalfwiseError(Exception):
    """Root of all errors that halfwise raises on purpose.

    Attributes:
        message: What is wrong and what was expected, one sentence.
        hint: What to do about it, one sentence; may be empty.
    """

    exit_code: ClassVar[int]

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def on(self, place: str) -> Self:
        """Return the error, with where it happened before its message."""
        self.message = f"{place}: {self.message}"
        return self

    def __str__(self) -> str:
        """Return message and hint on one line each."""
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(HalfwiseError):
    """An option or a combination of options that does not apply."""

    exit_code = 2


class CaseError(HalfwiseError):
    """The model, the inputs or the rules cannot be used as given."""

    exit_code = 3


class KernelMissing(CaseError):
    """The backend accepts the model but cannot run an operator, or its expansion, in its types."""


class GraphRefused(CaseError):
    """The backend finds the graph invalid, for example because types contradict each other."""


class BackendMissing(HalfwiseError):
    """A required library, execution provider or device is not available."""

    exit_code = 4


class BuildFailed(HalfwiseError):
    """The mixed-precision model or an engine could not be built."""

    exit_code = 5


class RunFailed(HalfwiseError):
    """A model that loaded failed while running on a sample.

    Attributes:
        node: The innermost node that could not be run; "" if unknown.
        why: The runtime's message; "" if it has nothing to add.
        late: Whether it was stopped because it took too long.
    """

    exit_code = 6

    def __init__(
        self, message: str, hint: str = "", *, node: str = "", why: str = "", late: bool = False
    ) -> None:
        super().__init__(message, hint)
        self.late = late
        self.node = node
        self.why = why


class TookTooLong(HalfwiseError):
    """Evaluations took too long more than once, so the command tries no others."""

    exit_code = 6


class RecordMismatch(HalfwiseError):
    """A run folder or record has another version or model, or is damaged."""

    exit_code = 7
