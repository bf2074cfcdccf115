"""Observes COUNT samples of the digits example, repeated as needed; prints the peak RSS in bytes.

python bench/observe_memory.py COUNT
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.inference import loaded
from bench.runs import digits
from halfwise.case import Settings
from halfwise.graph.roles import roles_of
from halfwise.observing import observe_network


def main(count: int) -> None:
    """Observe as `fix` does, and print the peak memory."""
    case = loaded(digits())
    samples = case.calibration.select([i % len(case.calibration) for i in range(count)])
    observe_network(case.network, samples, Settings().fmt, roles=roles_of(case.network))
    print(peak_rss())


def peak_rss() -> int:
    """Return this process's own peak in bytes (ru_maxrss is at least that of who started it)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(int(sys.argv[1]))
