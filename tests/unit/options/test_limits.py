import threading

import pytest

from halfwise.emulation.bounded import call
from halfwise.errors import RunFailed
from halfwise.options.limits import bounded
from halfwise.progress import Silent


@bounded
def command(seconds: float, **options: object) -> int:
    assert options.keys() <= {"watcher", "run_timeout"}
    stopped = threading.Event()
    call(lambda: stopped.wait(seconds), stopped.set, "It")
    return 3


def test_an_option_of_the_command_bounds_what_it_evaluates() -> None:
    assert command(0.0) == 3
    assert command(0.0, run_timeout=5, watcher=Silent()) == 3
    with pytest.raises(RunFailed, match=r"longer than 0\.02 s"):
        command(30.0, run_timeout=0.02)
    assert command(0.0) == 3
