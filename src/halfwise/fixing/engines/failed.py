"""What to say of a build that gave no engine, and of a worker that took it along."""

from collections.abc import Iterator
from contextlib import contextmanager

from halfwise.errors import BuildFailed
from halfwise.fixing.engines.measure import is_lost
from halfwise.records import BuildOutcome, LogFinding
from halfwise.tensorrt.log.log import explain
from halfwise.tensorrt.worker.failures import EngineFailed

_MOST = 12
_OTHER = "Try another --optimization-level, other --tactic-sources, or another version of TensorRT."
_ADVICE = {
    "timeout": "Give it more time: --build-timeout.",
    "skipped": "With a smaller --workspace or a lower --optimization-level it is another build, "
    "which is tried; with the journal beside the run folder removed, all are tried again.",
    "lost": "Try again (`halfwise fix` with --resume). A connection through ssh lasts longer with "
    "ServerAliveInterval.",
}


def nothing_judged(why: str) -> EngineFailed:
    """Return the error of a worker that is gone before an engine of it can be delivered."""
    return EngineFailed(
        "The worker was lost before an engine that is right was brought here, so there is none to "
        f"deliver: {why}",
        _ADVICE["lost"],
        status="lost",
    )


@contextmanager
def judging() -> Iterator[None]:
    """Say that no engine can be delivered where the connection is lost in the block."""
    try:
        yield
    except EngineFailed as failed:
        if not is_lost(failed):
            raise
        raise nothing_judged(failed.message) from failed


def build_failed(build: BuildOutcome, what: str) -> BuildFailed:
    """Return the error of a build without an engine, with all that its log says.

    Args:
        build: The build.
        what: What there is not, such as "no FP32 engine of this model".
    """
    by = f" by {build.signal}" if build.signal else ""
    found = [finding for finding in explain(build.log) if finding.severity != "info"]
    # What the message says already is not said twice.
    told = [_line(finding, build.message) for finding in found]
    lines = [line for line in told if line]
    if len(lines) > _MOST:
        lines[_MOST:] = [f"and {len(lines) - _MOST} more; halfwise explain-log shows all of a log."]
    lines = lines or [_ADVICE.get(build.status, _OTHER)]
    return BuildFailed(
        f"TensorRT builds {what} ({build.status}{by}): {build.message}", "\n".join(lines)
    )


def _line(finding: LogFinding, said: str) -> str:
    where = f"{', '.join(finding.nodes)}: " if finding.nodes else ""
    sentence = "" if finding.sentence.rstrip(".") in said else f"{where}{finding.sentence}"
    hint = "" if finding.hint in said else finding.hint
    return f"{sentence} {hint}".strip()
