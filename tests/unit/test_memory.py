import gc
import subprocess
import sys
from pathlib import Path

import pytest

from halfwise import api, memory
from halfwise.errors import CaseError
from halfwise.progress import Silent
from tests import models

CAPPED = """
import numpy as np
from halfwise import memory
memory.available = lambda: 1 << 30
memory.cap()
memory.cap()
try:
    np.ones(1 << 28)
except MemoryError as error:
    print(error)
memory.uncap()
print(np.ones(1 << 20).sum())
"""


def test_what_is_available_is_less_than_all_of_it() -> None:
    free = memory.available()
    total = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        if line.startswith("MemTotal:")
    )
    assert free is not None
    assert 0 < free < total


@pytest.mark.parametrize(
    ("limit", "used", "statistics", "left"),
    [
        ("1000", "300", "anon 5\ninactive_file 100\n", 800),
        ("1000", "1300", "anon 5\n", 0),
        ("max", "300", "inactive_file 100\n", None),
    ],
)
def test_the_cgroup_leaves_what_it_has_not_used(
    tmp_path: Path, limit: str, used: str, statistics: str, left: int | None
) -> None:
    (tmp_path / "memory.max").write_text(limit, encoding="ascii")
    (tmp_path / "memory.current").write_text(used, encoding="ascii")
    (tmp_path / "memory.stat").write_text(statistics, encoding="ascii")
    assert memory._cgroup_left(tmp_path) == left


def test_what_does_not_fit_is_refused_with_both_amounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: 2 * 10**9)
    memory.refuse_beyond(2 * 10**9, "It", "Less.")
    with pytest.raises(CaseError) as caught:
        memory.refuse_beyond(3 * 10**9, "It", "Less.")
    assert caught.value.message == "It needs 2.79 GiB of memory, but only 1.86 GiB are available."
    monkeypatch.setattr(memory, "available", lambda: None)
    memory.refuse_beyond(10**30, "It", "Less.")


def test_beyond_the_ceiling_an_allocation_fails_and_the_process_goes_on() -> None:
    run = subprocess.run([sys.executable, "-c", CAPPED], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [
        "Unable to allocate 2.00 GiB for an array with shape (268435456,) and data type float64",
        "1048576.0",
    ]


def test_garbage_is_collected_seldom_during_a_command_alone() -> None:
    before, seen = gc.get_threshold(), list[int]()

    class Seeing(Silent):
        def stage(self, name: str, total: int | None = None) -> None:
            del total
            seen.append(gc.get_threshold()[0])
            if name == "observe":
                raise KeyError(name)

    ill = models.conv_chain()
    with pytest.raises(KeyError, match="observe"):
        api.fix(ill.proto, dict(ill.inputs), watcher=Seeing())
    assert min(seen) > before[0]
    assert gc.get_threshold() == before
