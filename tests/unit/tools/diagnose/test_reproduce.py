import subprocess
import sys
from signal import SIGSEGV

import pytest

from halfwise.tools.diagnose.kernels import fp32_engine, low_engine
from tests.fake_tensorrt.faults import Fault
from tests.fake_tensorrt.regions import Region

CRASH = Fault("build", "segv", region=Region(nodes=("join", "d")))


@pytest.mark.parametrize(
    ("version", "rung", "fake"),
    [
        ("8.6.1", fp32_engine, {"faults": [CRASH]}),
        ("11.4.0", low_engine, {"lossy": {"b": 1.5}}),
    ],
)
def test_its_script_needs_tensorrt_and_numpy_alone(subject, fake_worker, version, rung, fake):
    made = subject(fake={"version": version, **fake})
    folder = made.folder / rung(made).engine.reproducer

    def run(**knobs):
        script = [*fake_worker(version, **knobs), str(folder / "reproduce.py")]
        return subprocess.run(script, capture_output=True, text=True, check=False)

    wrong = run(**fake)
    if "faults" in fake:
        assert wrong.returncode in (-SIGSEGV, 128 + SIGSEGV)
        right = run()
        assert right.returncode == 0, right.stdout + right.stderr
        assert right.stdout.endswith("right\n")
    else:
        assert wrong.returncode == 1, wrong.stderr
        assert wrong.stdout.endswith("wrong\n")
        dead = run(faults=[Fault("run", "address")])
        assert (dead.returncode, dead.stdout.splitlines()[-1]) == (
            1,
            "The engine fails to run.",
        )
        _untold(run(environment={"HALFWISE_CUDA_LIBRARY": "no-libcuda.so"}), "no-libcuda.so")
        bare = [sys.executable, "-S", str(folder / "reproduce.py")]
        _untold(subprocess.run(bare, capture_output=True, text=True, check=False), "tensorrt")


def _untold(ended, cause):
    assert ended.returncode == 2, ended.stdout + ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith("No result: ")
    assert cause in line
