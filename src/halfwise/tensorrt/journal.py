"""Record each build on disk before it starts and after it ends.

A build can crash halfwise itself, or the machine. The journal shows builds that began and never
ended: `--resume` retries them once, and no more, since they may be what takes the machine down. The
same holds for a build during which the connection was lost; if it was lost before, nothing is
known.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from halfwise.errors import RecordMismatch
from halfwise.records import BuildConfig, BuildOutcome
from halfwise.wording import seconds

SILENT_RUNS = 2
"""A build is skipped after this many consecutive runs without a result. Our choice: one may be an
accident, such as a power failure or a batch system's time limit."""


def config_key(config: BuildConfig) -> str:
    """Return the SHA-256 of a configuration, in hexadecimal."""
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


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
        self._begun: dict[str, dict[str, Any]] = {}
        self._ended: dict[str, BuildOutcome] = {}
        self._silent: Counter[str] = Counter()
        self._whole = True
        # State of a build before its last try.
        self._before: dict[str, tuple[dict[str, Any] | None, BuildOutcome | None]] = {}
        # A line that a crash cut off is useless, and the next one must not be appended to it.
        whole = path.read_bytes().rpartition(b"\n")[:2] if path.exists() else (b"",)
        for number, line in enumerate(b"".join(whole).splitlines(), start=1):
            self._recall(line, number)
        with path.open("ab") as file:
            file.truncate(sum(map(len, whole)))
        if whole[0]:
            self._write({"event": "resume"})
            self._resume()

    @property
    def remembers(self) -> bool:
        """Whether any build crashed, timed out, or had no result."""
        return bool(self._begun or self._silent)

    def _recall(self, line: bytes, number: int) -> None:
        try:
            entry = json.loads(line)
            event = entry["event"]
            if event == "resume":
                self._resume()
            elif entry["where"] == self._where and event == "begin":
                if not isinstance(entry["timeout"], int | float | None):
                    raise TypeError  # noqa: TRY301 - like the errors that Python raises below
                self._begin(entry)
            elif entry["where"] == self._where and event == "end":
                outcome = entry["outcome"]
                ended = None if outcome is None else BuildOutcome.model_validate(outcome)
                self._settle(entry["key"], ended)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise RecordMismatch(
                f"Line {number} of the journal {self.path} cannot be read.",
                "Remove the file; builds that crashed are then tried again.",
            ) from error

    def _resume(self) -> None:
        """At the start of a run, count the builds left without a result by the previous one."""
        for key in list(self._begun):
            if key not in self._ended or self._ended[key].status == "lost":
                self._silent[key] += 1
                self._forget(key)

    def _begin(self, entry: dict[str, Any]) -> None:
        key = entry["key"]
        self._before[key] = self._begun.get(key), self._ended.get(key)
        self._forget(key)
        self._begun[key] = entry

    def _settle(self, key: str, outcome: BuildOutcome | None) -> None:
        """Forget a configuration that may be retried: all but crashes, time-outs, losses.

        If the build did not begin, the earlier state remains.
        """
        if outcome is not None and not outcome.begun:
            self._forget(key)
            begun, ended = self._before.get(key, (None, None))
            if begun is not None:
                self._begun[key] = begun
            if ended is not None:
                self._ended[key] = ended
            return
        if outcome is not None and outcome.status in ("crashed", "timeout", "lost"):
            self._ended[key] = outcome
        else:
            self._forget(key)
        if outcome is not None and outcome.status != "lost":
            self._silent.pop(key, None)

    def _forget(self, key: str) -> None:
        self._begun.pop(key, None)
        self._ended.pop(key, None)

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
        if reason := self._why_skipped(key, timeout):
            return BuildOutcome(
                number=number,
                purpose=purpose,
                status="skipped",
                message=reason,
                config=config,
                seconds=0.0,
            )
        entry = {"event": "begin", "key": key, "where": self._where, "number": number}
        entry |= {"purpose": purpose, "timeout": timeout, "config": config.model_dump(mode="json")}
        self._note(entry)
        self._begin(entry)
        outcome = None
        try:
            outcome = build()
        finally:
            # Also after an interruption, which says nothing about the configuration.
            ended: dict[str, Any] = {"event": "end", "key": key, "where": self._where}
            ended["outcome"] = None if outcome is None else outcome.model_dump(mode="json")
            self._note(ended)
            self._settle(key, outcome)
        return outcome

    def _why_skipped(self, key: str, timeout: float | None) -> str:
        if self._silent[key] >= SILENT_RUNS:
            return (
                f"{self._silent[key]} runs in a row got no result for this build: halfwise itself "
                "ended during it, or the connection was lost; it is not tried again."
            )
        outcome = self._ended.get(key)
        if outcome is None or outcome.status == "lost":
            return ""
        if outcome.status == "crashed":
            how = outcome.signal or "an exit"
            return f"This build ended with {how} before; it is not tried again."
        before = self._begun[key]["timeout"]
        longer = before is not None and (timeout is None or timeout > before)
        return "" if longer else f"This build took longer than {seconds(before)} before."

    def _note(self, entry: dict[str, Any]) -> None:
        """Write an entry; stop after a failure, since builds matter more than their journal."""
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
