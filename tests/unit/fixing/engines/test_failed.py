from halfwise.fixing.engines import build_failed
from tests.unit.reporting.engine_runs import build

WHAT = "no engine of this model"


def test_a_crash_is_told_with_its_signal():
    crash = build(
        1, "x", status="crashed", signal="SIGSEGV", engine=None, message="The build ended."
    )
    error = build_failed(crash, WHAT)
    assert error.exit_code == 5
    assert error.message == "TensorRT builds no engine of this model (crashed by SIGSEGV): " + (
        "The build ended."
    )
    assert "--tactic-sources" in error.hint
    slow = build(1, "x", status="timeout", engine=None, message="It took longer.")
    assert "--build-timeout" in build_failed(slow, WHAT).hint
    skipped = build(1, "x", status="skipped", engine=None, message="No result in 2 runs.")
    assert "--workspace" in build_failed(skipped, WHAT).hint
    assert "journal" in build_failed(skipped, WHAT).hint


def test_everything_of_the_log_is_explained_once():
    said = "The build failed: nobody knows."
    log = (
        "info: nothing",
        "error: 2: [x.cpp] Error Code 2: OutOfMemory (no further information)",
        "error: nobody knows.",
    )
    error = build_failed(build(1, "x", status="failed", engine=None, message=said, log=log), WHAT)
    assert len(error.hint.splitlines()) == 1
    assert "memory" in error.hint.lower()


def test_a_long_log_is_cut():
    names = [chr(ord("a") + i) for i in range(20)]
    log = tuple(f"error: a fault of kind {name}" for name in names)
    failed = build(1, "x", status="failed", engine=None, message="It failed.", log=log)
    lines = build_failed(failed, WHAT).hint.splitlines()
    assert len(lines) == 13
    assert lines[-1].startswith("and 8 more")
