"""Errors for a worker's refusals, crashes and silences, and the journal of builds that ended so.

A build can crash halfwise itself, or the machine. The journal shows builds that began and never
ended: `--resume` retries them once, and no more, since they may be what takes the machine down. The
same holds for a build during which the connection was lost; if it was lost before, nothing is
known.
"""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
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
from halfwise.records import BuildConfig, BuildOutcome, LogFinding, RefusalKind
from halfwise.tensorrt.layers import foreign_region, names_in
from halfwise.tensorrt.log import at_layer, explain, known, split_line
from halfwise.tensorrt.transport import Ended, Lost
from halfwise.wording import MOST_ROWS, excerpt, seconds, stopped

SILENT_RUNS = 2
"""A build is skipped after this many consecutive runs without a result. Our choice: one may be an
accident, such as a power failure or a batch system's time limit."""


def config_key(config: BuildConfig) -> str:
    """Return the SHA-256 of a configuration, in hexadecimal."""
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class _Try:
    """A build that began, and perhaps ended badly; `run` counts the runs that share a journal."""

    run: int
    timeout: float | None
    outcome: BuildOutcome | None = None

    @property
    def is_silent(self) -> bool:
        return self.outcome is None or self.outcome.status == "lost"


class Journal:
    """The file `journal.jsonl`: one line before each build, after it, and when a run resumes.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, where: str = "") -> None:
        """Open the journal; its content is kept.

        Args:
            path: The file; created if missing.
            where: TensorRT and GPU. Builds that crashed elsewhere are not skipped here.

        Raises:
            RecordMismatch: the file is no journal.
            OSError: it cannot be written.
        """
        self.path, self._where = path, where
        self._tries: defaultdict[str, list[_Try]] = defaultdict(list)
        self._run = 0
        self._whole = True
        # A line that a crash cut off is useless, and the next one must not be appended to it.
        whole = path.read_bytes().rpartition(b"\n")[:2] if path.exists() else (b"",)
        for number, line in enumerate(b"".join(whole).splitlines(), start=1):
            try:
                self._take(json.loads(line))
            except (ValueError, TypeError, LookupError, RecursionError) as error:
                raise RecordMismatch(
                    f"Line {number} of the journal {self.path} cannot be read.",
                    "Remove the file; builds that crashed are then tried again.",
                ) from error
        with path.open("ab") as file:
            file.truncate(sum(map(len, whole)))
        if whole[0]:
            self._write({"event": "resume"})
            self._run += 1

    @property
    def remembers(self) -> bool:
        """Whether any build crashed, timed out, or had no result."""
        return any(self._tries.values())

    def _take(self, entry: Mapping[str, Any]) -> None:
        """Take a line into account: a result clears its configuration, others are remembered.

        An interruption says nothing, and neither does a worker that was lost before the build.
        """
        if entry["event"] == "resume":
            self._run += 1
            return
        if entry["where"] != self._where:
            return
        tries, limit = self._tries[entry["key"]], entry.get("timeout")
        if entry["event"] == "begin":
            tries.append(_Try(self._run, None if limit is None else float(limit)))
            return
        begun = tries.pop()
        if entry["outcome"] is None:
            return
        outcome = BuildOutcome.model_validate(entry["outcome"])
        if outcome.begun and outcome.status in ("crashed", "timeout", "lost"):
            tries.append(replace(begun, outcome=outcome))
        elif outcome.begun:
            tries.clear()

    def record(
        self,
        build: Callable[[], BuildOutcome],
        *,
        number: int,
        purpose: str,
        config: BuildConfig,
        timeout: float | None,
    ) -> BuildOutcome:
        """Build, recording start and end, or skip a configuration that ended badly before.

        Args:
            build: Builds `config`.
            number: Number of the build.
            purpose: What it is for.
            config: The configuration to build.
            timeout: Its time-out in seconds. After a time-out, only a longer one is tried.

        Returns:
            The outcome from `build`, or one of status "skipped".
        """
        key = config_key(config)
        if reason := self._why_skipped(self._tries[key], timeout):
            return BuildOutcome(
                number=number,
                purpose=purpose,
                status="skipped",
                message=reason,
                config=config,
                seconds=0.0,
            )
        about = {"key": key, "where": self._where, "number": number, "purpose": purpose}
        dumped = config.model_dump(mode="json")
        self._note({"event": "begin", **about, "timeout": timeout, "config": dumped})
        outcome = None
        try:
            outcome = build()
        finally:
            ended = None if outcome is None else outcome.model_dump(mode="json")
            self._note({"event": "end", **about, "outcome": ended})
        return outcome

    def _why_skipped(self, tries: Sequence[_Try], timeout: float | None) -> str:
        silent = {t.run for t in takewhile(lambda t: t.is_silent, reversed(tries))} - {self._run}
        if len(silent) >= SILENT_RUNS:
            return (
                f"{len(silent)} runs in a row got no result for this build: halfwise itself "
                "ended during it, or the connection was lost; it is not tried again."
            )
        last = tries[-1] if tries else None
        if last is None or last.outcome is None or last.outcome.status == "lost":
            return ""
        if last.outcome.status == "crashed":
            how = last.outcome.signal or "an exit"
            return f"This build ended with {how} before; it is not tried again."
        longer = last.timeout is not None and (timeout is None or timeout > last.timeout)
        return "" if longer else f"This build took longer than {seconds(last.timeout or 0)} before."

    def _note(self, entry: dict[str, Any]) -> None:
        """Take an entry and write it; a failure to write stops only the writing."""
        self._take(entry)
        try:
            if self._whole:
                self._write(entry)
        except OSError:
            self._whole = False

    def _write(self, entry: dict[str, Any]) -> None:
        with self.path.open("ab") as file:
            file.write(json.dumps(entry).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


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
    "parse": BuildFailed,
    "build": BuildFailed,
}
_ABOUT_ONE_BUILD = ("parse", "build", "engine")
"""Codes of refusals that another configuration may avoid."""

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
        log: The last lines of the log.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        status: FailureStatus = "failed",
        signal: str | None = None,
        log: Sequence[str] = (),
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        self.signal = signal
        self.log = tuple(log)


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


def refusal(answer: Mapping[str, Any], log: Sequence[str]) -> HalfwiseError:
    """Return the exception for an `error` answer."""
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
    return EngineFailed(message, hint, log=log)


def summary(answer: Mapping[str, Any]) -> str:
    """Return message and hint of a refusal in one line."""
    return f"{_sentence(answer)} {answer.get('hint', '')}".strip()


def concerns_one_build(answer: Mapping[str, Any]) -> bool:
    """Return whether a refused build says nothing about builds of other configurations."""
    code = answer.get("code", "")
    return code in _ABOUT_ONE_BUILD or code not in _ERRORS


def refusal_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return a refusal's details beyond its message: all parser errors, complaints."""
    return [*map(str, answer.get("log", ())), *parser_lines(answer.get("errors", ()))]


def death(
    answer: Mapping[str, Any], what: str, timeout: float | None
) -> tuple[FailureStatus, str | None, str]:
    """Return status, signal and one sentence for a `died` answer.

    Args:
        answer: The answer.
        what: The activity, such as "The build".
        timeout: Its time-out, in seconds.
    """
    reason, name = answer.get("reason"), answer.get("signal")
    if reason == "timeout":
        limit = "its time-out" if timeout is None else seconds(timeout)
        return "timeout", None, f"{what} took longer than {limit} and was ended."
    if reason == "signal":
        why = ": usually memory ran out on its host" if name == "SIGKILL" else ""
        return "crashed", name, f"{what} ended with {name}{why}."
    if reason == "exit":
        return "crashed", None, f"{what} ended its process with status {answer.get('status')}."
    return "crashed", None, f"{what} ended without an answer, and its process had to be killed."


def lost_connection(name: str, lost: Lost) -> tuple[FailureStatus, str]:
    """Return status and one sentence for a connection to worker `name` that is lost or ended."""
    if isinstance(lost, Ended):
        return "interrupted", "Ctrl-C came."
    return "lost", f"The connection to worker {name} is lost: {lost.reason}."


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
    changed["message"] = f"TensorRT {tensorrt} cannot parse the model{where}: {what}"
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
LOST = (
    "Try again (`halfwise fix` with --resume). A connection through ssh lasts longer with "
    "ServerAliveInterval."
)
_NEXT = {
    "timeout": "Give it more time: --budget build-timeout=SECONDS.",
    "skipped": "A smaller --engine workspace=SIZE or a lower optimization-level makes it a "
    "different build, which is tried; remove the journal next to the run folder to try all "
    "builds again.",
    "lost": LOST,
}


_KINDS: Mapping[str, RefusalKind] = {
    "no-kernel": "no-kernel",
    "no-format": "no-kernel",
    "myelin": "compiler",
    "cask": "compiler",
    "assertion": "compiler",
}
"""Kind of message → kind of refusal. In this order, the first one found in a log counts."""
_ENDED: Mapping[str, RefusalKind] = {"crashed": "crash", "timeout": "timeout"}


@dataclass(frozen=True)
class Blamed:
    """How a build was refused.

    Attributes:
        kind: Kind of refusal.
        layer: The layer it named, in the builder's notation: `{ForeignNode[a...b]}`, `a + b`; empty
            if it named none.
        line: The builder's last message of that kind; if no message is known, its last error
            without the severity; empty if it logged no error.
    """

    kind: RefusalKind
    layer: str = ""
    line: str = ""

    @property
    def ends(self) -> tuple[str, ...]:
        """The first and the last layer; empty if no layer was named."""
        names = names_in(self.layer)
        return foreign_region(self.layer) or (*names[:1], *names[-1:])


def how_refused(build: BuildOutcome) -> Blamed:
    """Return how a build was refused, from its message and log.

    The last known message that names a layer counts; if none does, the layer that the builder was
    working on.
    """
    kinds: dict[RefusalKind, str] = {}
    layer = at = error = ""
    for line in (*build.message.splitlines(), *build.log):
        severity, text = split_line(line)
        error = text if severity == "error" and text else error
        at = at_layer(text) or at
        found = known(text)
        if found is None or found[0].kind not in _KINDS:
            continue
        kinds[_KINDS[found[0].kind]] = _inner(text[found[1].start() :])
        layer = found[1].groupdict().get("layer") or _fused(text) or layer
    kind: RefusalKind = next((kind for kind in _KINDS.values() if kind in kinds), "unknown")
    line = kinds.get(kind) or error
    return Blamed(_ENDED.get(build.status, kind), (layer or at).strip(), line)


def _inner(text: str) -> str:
    """Return the text without a closing bracket whose opening bracket is not in it."""
    return text[:-1].rstrip() if text.endswith(")") and text.count(")") > text.count("(") else text


def _fused(text: str) -> str:
    """Return the text from the name of a fused block onwards; "" without one."""
    start = text.find("{ForeignNode[")
    return text[start:] if start >= 0 else ""


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
