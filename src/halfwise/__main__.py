"""`halfwise`, and `python -m halfwise`."""

import atexit
import os
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Import the command line and run it; Ctrl-C waits until that can report it."""
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    from halfwise.memory import collect_seldom  # noqa: PLC0415

    # To the end: the first collection as before would search all objects, a tenth of a run.
    collect_seldom()
    from halfwise.cli import main as command_line  # noqa: PLC0415

    command_line()


def run() -> None:
    """Run the command line, and end the process without freeing its objects.

    Graphs of thousands of nodes are millions of objects: freeing them takes a sixth of an `observe`
    at 3,000 nodes, and an operator that is still computing would be waited for.
    """
    ended: list[int] = []

    # Registered before all others, it runs after them; a traceback ends as Python ends it.
    @atexit.register
    def leave() -> None:
        if ended:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(ended[0])

    try:
        main()
    except SystemExit as end:
        ended.append(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


if __name__ == "__main__":
    run()
