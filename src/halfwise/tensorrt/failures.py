"""Errors for a worker's refusals, crashes and silences."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import onnx

from halfwise.errors import (
    BackendMissing,
    BuildFailed,
    CaseError,
    HalfwiseError,
    RecordMismatch,
    RunFailed,
    UsageError,
)
from halfwise.records import BuildOutcome, LogFinding
from halfwise.tensorrt.log import at_layer, explain, known, split_line
from halfwise.tensorrt.transport import Ended, Lost
from halfwise.tensorrt.worker import titled
from halfwise.wording import MOST_ROWS, excerpt, seconds, stopped

FailureStatus = Literal["failed", "crashed", "timeout", "lost", "interrupted"]

_ERRORS: dict[str, type[HalfwiseError]] = {
    "tensorrt-missing": BackendMissing,
    "tensorrt-version": BackendMissing,
    "gpu-missing": BackendMissing,
    "plugin": BackendMissing,
    "typing": UsageError,
    "option": UsageError,
    "lock": UsageError,
    "profile": CaseError,
    "shape": CaseError,
    "dtype": CaseError,
    "engine": RecordMismatch,
}
"""By code of a refusal; other refusals concern one engine."""

_UNREADABLE = {
    "file-damaged": (
        "The file has no valid engine header: it is damaged, from another version or system, or "
        "not an engine.",
        "Rebuild the engine with the TensorRT version that runs it.",
    )
}
"""What messages about any file mean if the file is an engine, by kind of message."""


class EngineFailed(RunFailed):
    """An engine or its worker failed while the engine ran, was timed or was inspected.

    Attributes:
        status: "failed": TensorRT or CUDA gave an error; "crashed": a signal or exit ended the
            process; "timeout"; "lost": the connection broke; "interrupted": Ctrl-C ended it.
        signal: Name of the signal, such as "SIGSEGV".
        log: The last lines of the log, and a refusal's further ones.
        code: That of the refusal; "" for none.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        status: FailureStatus = "failed",
        signal: str | None = None,
        log: Iterable[str] = (),
        code: str = "",
    ) -> None:
        super().__init__(message, hint)
        self.status, self.signal = status, signal
        self.log, self.code = tuple(log), code


class WorkerEnded(HalfwiseError):
    """A worker was ended because its answers are unreliable or it makes no progress.

    That says nothing about an engine or a plan, and a retry would not help: it ends the command
    unless a correct FP32 engine is waiting to be delivered.
    """

    exit_code = RunFailed.exit_code


class NoAnswer(BackendMissing):
    """A worker does not start.

    Attributes:
        why: The evidence, a clause; by default the message.
    """

    def __init__(self, message: str, hint: str, *, why: str = "") -> None:
        super().__init__(message, hint)
        self.why = why or message


WORKER_GONE = (BackendMissing, WorkerEnded)
"""Errors of a worker that can do nothing more; after a build they mean that it is lost."""
ENGINE_FAULTS = (RunFailed, CaseError, RecordMismatch, *WORKER_GONE)
"""Errors of an engine that cannot be read or run. If the same model's FP32 engine took the same
samples, the fault is the engine's, not the user's."""


def refusal(answer: Mapping[str, Any], log: Iterable[str]) -> HalfwiseError:
    """Return the exception for an `error` answer.

    Its log ends with details beyond the message: all parser errors, and complaints.
    """
    code, message, hint = (
        answer.get("code", ""),
        _sentence(answer),
        excerpt(str(answer.get("hint", ""))),
    )
    if code == "engine" and (findings := explain(map(str, answer.get("log", ())))):
        why, what = _UNREADABLE.get(findings[0].kind, (findings[0].sentence, findings[0].hint))
        message, hint = f"{message} {why}", f"{what} {hint}".strip()
    if kind := _ERRORS.get(code):
        return kind(message, hint)
    if code == "memory":
        hint = hint or "Free GPU memory, or use smaller shapes or a smaller workspace."
    lines = (*log, *answer.get("log", ()), *parser_lines(answer.get("errors", ())))
    return EngineFailed(message, hint, log=lines, code=code)


def death(
    answer: Mapping[str, Any], what: str, timeout: float | None, log: Iterable[str] = ()
) -> EngineFailed:
    """Return the exception for a `died` answer.

    Args:
        answer: The answer.
        what: The activity, such as "The build".
        timeout: Its time-out, in seconds.
        log: The last lines of the log.
    """
    name = answer["signal"]
    if name == "SIGALRM":
        limit = "its time-out" if timeout is None else seconds(timeout)
        message = f"{what} took longer than {limit} and was ended."
        return EngineFailed(message, status="timeout", log=log)
    if name is None:
        how = f"ended its process with status {answer['status']}"
    else:
        why = ": usually memory ran out on its host" if name == "SIGKILL" else ""
        how = f"ended with {name}{why}"
    return EngineFailed(f"{what} {how}.", status="crashed", signal=name, log=log)


def lost_connection(name: str, lost: Lost, log: Sequence[str]) -> EngineFailed:
    """Return the exception for a connection to worker `name` that is lost or ended."""
    if isinstance(lost, Ended):
        return EngineFailed("Ctrl-C came.", status="interrupted", log=log)
    message = f"The connection to worker {name} is lost: {lost.reason}."
    printed = (line for line in lost.printed if f"noise: {line}" not in log)
    return EngineFailed(message, status="lost", log=(*log, *printed))


def unfit(name: str, op: str, what: str) -> tuple[str, str]:
    """Return message and hint for an invalid answer of worker `name` to a request."""
    return (
        f"Worker {name} violates the protocol: in answer to {op!r} it {excerpt(what)}.",
        "Its process was ended. Check its command, and anything between halfwise and the worker.",
    )


def no_answer(
    name: str, command: Sequence[str], reason: str, printed: Sequence[str]
) -> HalfwiseError:
    """Return the exception for a worker that does not start."""
    said = f'; it printed "{_telling(printed)}"' if printed else ""
    return NoAnswer(
        f"Worker {name} does not answer: {reason}{said}. Its command is: {' '.join(command)}",
        _advice("\n".join(printed)),
        why=f"{reason}{said}",
    )


def _telling(printed: Sequence[str]) -> str:
    """Return the most informative lines: the last of a traceback, else the last three."""
    tail = printed[-1:] if any(line.startswith("Traceback") for line in printed) else printed[-3:]
    return excerpt(" / ".join(tail))


_ADVICE = {
    "Permission denied": "Let ssh log in without a password: a key in its agent, or IdentityFile.",
    "Host key verification failed": "Connect once by hand with ssh, and accept the host's key.",
    "not a TTY": "Remove -t from the command: halfwise needs plain pipes.",
    "not a terminal": "Remove -t from the command, and RequestTTY from ssh's configuration.",
    "command not found": "Give the interpreter's full path on that machine.",
    "needs Python 3.8": "End the command with a newer interpreter.",
    "Cannot connect to the Docker daemon": "Start Docker, or use another worker.",
}


def _advice(printed: str) -> str:
    for sign, advice in _ADVICE.items():
        if sign in printed:
            return advice
    return "The command must end with a Python interpreter: try it by hand with -c 'print(1)'."


def _sentence(answer: Mapping[str, Any]) -> str:
    message = excerpt(str(answer.get("message", "The worker refuses without giving a reason.")))
    if (errors := len(answer.get("errors", ()))) > 1:
        message = f"{message.rstrip('.')} (the first of {errors} parser errors)."
    return stopped(message)


def named(answer: Mapping[str, Any], model: Path, tensorrt: str | None) -> dict[str, Any]:
    """Return a refusal; for one of the parser, with every node's name and a plain message.

    TensorRT before 9 gives only a node's position in the file.

    Args:
        answer: The worker's answer.
        model: The ONNX file that the answer is about.
        tensorrt: The worker's version.
    """
    if answer.get("code") != "parse":
        return dict(answer)
    nodes = onnx.load(model, load_external_data=False).graph.node
    errors = [_named(error, nodes) for error in answer.get("errors", ())]
    changed = {**answer, "errors": errors}
    if not errors:
        return changed
    first, findings = errors[0], explain(parser_lines(errors[:1]))
    where = f" at node {first['node']} ({first['op']})" if first["node"] else ""
    what = findings[0].sentence if findings else first["text"]
    changed["message"] = f"{titled(tensorrt)} cannot parse the model{where}: {what}"
    changed["hint"] = answer.get("hint") or (findings[0].hint if findings else "")
    return changed


def parser_lines(errors: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for every error, in Polygraphy's wording."""
    lines = []
    for number, error in enumerate(errors):
        index = error.get("index")
        # Errors without a place get distinct numbers.
        place = index if isinstance(index, int) and index >= 0 else -1 - number
        name = f" with name: {error['node']} and operator: {error['op']}" if error["node"] else ""
        lines.append(f"error: In node {place}{name} (parser): ERROR: {error.get('text', '')}")
    return lines


def _named(error: Mapping[str, Any], nodes: Sequence[onnx.NodeProto]) -> dict[str, Any]:
    index = error.get("index")
    if error.get("node") or not isinstance(index, int) or not 0 <= index < len(nodes):
        return {"node": "", "op": "", **error}
    return {**error, "node": nodes[index].name, "op": nodes[index].op_type}


_OTHER = "Try another --engine optimization-level=N, other tactic-sources, or another TensorRT."
_UNPARSED = (
    "No builder option helps the parser: `halfwise lint MODEL` names what the parser may "
    "reject. An operator that the parser "
    "lacks needs a plugin (--engine plugin=PATH) or another version of TensorRT. `halfwise "
    "explain-log` reads the log of trtexec."
)
LOST = "Try again. A connection through ssh lasts longer with ServerAliveInterval."
_NEXT = {
    "timeout": "Give it more time: --budget build-timeout=SECONDS.",
    "lost": LOST,
}


_TELLING = frozenset(("no-kernel", "no-format", "myelin", "cask", "assertion"))
"""Kinds of messages that say why a builder gave up; others only follow from these."""


def last_words(log: Iterable[str]) -> str:
    """Return what a builder said of its failure, one line without severity; "" for nothing.

    That is its last message that says why; if no such message is known, its last error; without
    one, that it started on the layer that it was working on.
    """
    why = error = at = ""
    for line in log:
        severity, text = split_line(line)
        found = known(text)
        if found is not None and found[0].kind in _TELLING:
            why = _inner(text[found[1].start() :])
        error = text if severity == "error" and text else error
        at = text if at_layer(text) else at
    return why or error or at


def _inner(text: str) -> str:
    """Return the text without a closing bracket whose opening bracket is not in it."""
    return text[:-1].rstrip() if text.endswith(")") and text.count(")") > text.count("(") else text


def build_failed(build: BuildOutcome, what: str) -> BuildFailed:
    """Return the error for a build without an engine, with everything its log says.

    Args:
        build: The build.
        what: What is missing, such as "no FP32 engine of this model".
    """
    by = f" by {build.signal}" if build.signal else ""
    found = [finding for finding in explain(build.log) if finding.severity != "info"]
    # Do not repeat what the message already says.
    told = [_line(finding, build.message) for finding in found]
    lines = [line for line in told if line]
    if len(lines) > MOST_ROWS:
        lines[MOST_ROWS:] = [
            f"and {len(lines) - MOST_ROWS} more; halfwise explain-log shows all of a log."
        ]
    advised = any(finding.hint and finding.kind != "not-parsed" for finding in found)
    if not build.parsed and not advised:
        lines.append(_UNPARSED)
    lines = lines or [_NEXT.get(build.status, _OTHER)]
    return BuildFailed(
        f"TensorRT builds {what} ({build.status}{by}): {build.message}", "\n".join(lines)
    )


def _line(finding: LogFinding, said: str) -> str:
    where = f"{', '.join(finding.nodes)}: " if finding.nodes else ""
    sentence = "" if finding.sentence.rstrip(".") in said else f"{where}{finding.sentence}"
    hint = "" if finding.hint in said else finding.hint
    return f"{sentence} {hint}".strip()
