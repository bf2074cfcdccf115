"""What was built and how it ended, on disk before and after each build.

A build can end halfwise itself, or the machine. What began and never ended is known from here, so
`--resume` leaves it out.
"""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from halfwise.errors import RecordMismatch
from halfwise.records import BuildConfig, BuildOutcome


def config_key(config: BuildConfig) -> str:
    """Return the SHA-256 of a configuration, in hexadecimal."""
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Journal:
    """The file `journal.jsonl`: a line before each build and one after it.

    Attributes:
        path: The file.
        outcomes: Builds of earlier runs that ended, in order.
    """

    def __init__(self, path: Path, where: str = "") -> None:
        """Open the journal; what stands in it is kept.

        Args:
            path: The file; made where it is missing.
            where: TensorRT and GPU. What crashed elsewhere is not skipped here.

        Raises:
            RecordMismatch: the file is no journal.
            OSError: it cannot be written.
        """
        self.path, self._where = path, where
        self._begun: dict[str, dict[str, Any]] = {}
        self.outcomes: list[BuildOutcome] = []
        # A line that a crash cut off says nothing; the next one must not be glued to it.
        whole = path.read_bytes().rpartition(b"\n")[:2] if path.exists() else (b"",)
        for number, line in enumerate(b"".join(whole).splitlines(), start=1):
            self._recall(line, number)
        with path.open("ab") as file:
            file.truncate(sum(map(len, whole)))

    @property
    def remembers(self) -> bool:
        """Whether there are builds to leave out: they crashed, took too long, or never ended."""
        return bool(self._begun)

    def _recall(self, line: bytes, number: int) -> None:
        try:
            entry = json.loads(line)
            if entry["event"] == "begin":
                self._remember(entry)
            elif entry["event"] == "end":
                self._settle(entry)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise RecordMismatch(
                f"Line {number} of the journal {self.path} cannot be read.",
                "Remove the file; builds that crashed are tried again then.",
            ) from error

    def _remember(self, entry: dict[str, Any]) -> None:
        if entry["where"] == self._where:
            self._begun[entry["key"]] = entry

    def _settle(self, entry: dict[str, Any]) -> None:
        """Forget a configuration that may be tried again: all but crashes and time-outs."""
        if entry["where"] != self._where:
            return
        outcome = entry["outcome"]
        if outcome is not None:
            self.outcomes.append(BuildOutcome.model_validate(outcome))
        if outcome is not None and outcome["status"] in ("crashed", "timeout"):
            self._begun[entry["key"]]["outcome"] = outcome
        else:
            self._begun.pop(entry["key"], None)

    def record(
        self,
        build: Callable[[], BuildOutcome],
        *,
        number: int,
        purpose: str,
        config: BuildConfig,
        timeout: float | None,
    ) -> BuildOutcome:
        """Build with lines before and after it, or skip what ended badly before.

        Args:
            build: Builds `config`.
            number: Number of the build.
            purpose: What it is for.
            config: What is built.
            timeout: Its time-out in seconds. What took longer is skipped unless it has more now.

        Returns:
            What `build` returns, or an outcome of status "skipped".
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
        self._write(entry)
        self._remember(entry)
        outcome = None
        try:
            outcome = build()
        finally:
            # Also where it is interrupted: that says nothing against the configuration.
            ended: dict[str, Any] = {"event": "end", "key": key, "where": self._where}
            ended["outcome"] = None if outcome is None else outcome.model_dump(mode="json")
            self._write(ended)
            self._settle(ended)
        return outcome

    def _why_skipped(self, key: str, timeout: float | None) -> str:
        entry = self._begun.get(key)
        if entry is None:
            return ""
        outcome = entry.get("outcome")
        if outcome is None:
            return "halfwise itself ended during this build before; it is not tried again."
        if outcome["status"] == "crashed":
            how = outcome["signal"] or "an exit"
            return f"This build ended with {how} before; it is not tried again."
        longer = entry["timeout"] is not None and (timeout is None or timeout > entry["timeout"])
        return "" if longer else f"This build took longer than {entry['timeout']:g} s before."

    def _write(self, entry: dict[str, Any]) -> None:
        with self.path.open("ab") as file:
            file.write(json.dumps(entry).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
