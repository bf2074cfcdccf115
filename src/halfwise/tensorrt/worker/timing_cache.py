"""Timing caches of the user that TensorRT does not take."""

from itertools import count
from pathlib import Path


def keep_aside(path: Path) -> str:
    """Move a timing cache aside, and return a sentence that says so.

    trtexec warns and writes its own in place of it; a cache can be the work of hours. It becomes
    NAME.old, or NAME.old2 and so on where that is there already: nothing is overwritten. One that
    another process has removed by now is no loss.
    """
    names = (f"{path.name}.old{number if number > 1 else ''}" for number in count(1))
    aside = next(found for name in names if not (found := path.with_name(name)).exists())
    try:
        path.rename(aside)
    except FileNotFoundError:
        return f"TensorRT did not take the timing cache {path}."
    return (
        f"TensorRT did not take the timing cache {path}: it is damaged, of another version or GPU, "
        f"or holds kernels that this version cannot read back. It is {aside} now, and a new one "
        "was written."
    )
