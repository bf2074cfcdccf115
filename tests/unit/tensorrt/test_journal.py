import json
import os
import signal
import warnings

import pytest

from halfwise.errors import RecordMismatch
from halfwise.records import BuildConfig, BuildOutcome, NodeName
from halfwise.tensorrt.failures import Journal, config_key

CONFIG = BuildConfig(model_sha256="a", typing="weak", keep=(NodeName("n"),))


def outcome(status="built", **further):
    return BuildOutcome(number=1, purpose="p", status=status, config=CONFIG, seconds=1.0, **further)


def record(journal, build, *, timeout: float | None = 10.0, config=CONFIG):
    return journal.record(build, number=2, purpose="mixed", config=config, timeout=timeout)


def test_the_key_is_of_the_whole_configuration():
    assert config_key(CONFIG) == config_key(BuildConfig(**CONFIG.model_dump()))
    assert config_key(CONFIG) != config_key(CONFIG.model_copy(update={"tf32": True}))


def test_the_line_stands_before_the_build(tmp_path):
    path = tmp_path / "journal.jsonl"

    def build():
        (line,) = path.read_text().splitlines()
        assert json.loads(line)["event"] == "begin"
        assert json.loads(line)["config"]["keep"] == ["n"]
        return outcome()

    assert record(Journal(path), build) == outcome()
    begin, end = map(json.loads, path.read_text().splitlines())
    assert begin["key"] == end["key"] == config_key(CONFIG)


def never():
    raise AssertionError("built again")


def test_a_crash_is_not_repeated(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    record(journal, lambda: outcome("crashed", signal="SIGSEGV"))
    for again in (journal, Journal(path)):
        skipped = record(again, never)
        assert skipped.status == "skipped"
        assert skipped.message == "This build ended with SIGSEGV before; it is not tried again."
        assert (skipped.number, skipped.purpose, skipped.config) == (2, "mixed", CONFIG)
    other = CONFIG.model_copy(update={"tf32": True})
    assert record(journal, outcome, config=other).status == "built"


def ends_halfwise(path):
    with warnings.catch_warnings():  # of threads: the child ends at once
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        record(Journal(path), lambda: os.kill(os.getpid(), signal.SIGKILL))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_what_ended_halfwise_is_tried_once_more(tmp_path):
    path = tmp_path / "journal.jsonl"
    assert ends_halfwise(path)
    assert record(Journal(path), outcome).status == "built"
    assert not Journal(path).remembers


def loses(path):
    record(Journal(path), lambda: outcome("lost"))
    return True


@pytest.mark.parametrize(
    "run", [(ends_halfwise, ends_halfwise), (loses, loses), (ends_halfwise, loses)]
)
def test_what_had_no_result_in_two_runs_is_not_tried_again(tmp_path, run):
    path = tmp_path / "journal.jsonl"
    assert all(end(path) for end in run)
    for _ in range(2):
        journal = Journal(path)
        assert journal.remembers
        skipped = record(journal, never)
        assert skipped.status == "skipped"
        assert skipped.message.startswith("2 runs in a row got no result for this build: ")
    other = CONFIG.model_copy(update={"workspace_bytes": 1 << 20})
    assert record(journal, outcome, config=other).status == "built"


def test_losses_of_one_run_count_once(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    for _ in range(3):
        assert record(journal, lambda: outcome("lost")).status == "lost"
    assert record(Journal(journal.path), lambda: outcome("lost")).status == "lost"
    assert record(Journal(journal.path), never).status == "skipped"


def absent():
    return outcome("lost", begun=False)


def test_a_worker_that_was_gone_before_a_build_says_nothing_of_it(tmp_path):
    path = tmp_path / "journal.jsonl"
    for _ in range(3):
        journal = Journal(path)
        assert record(journal, absent).status == "lost"
        assert not journal.remembers
    assert record(Journal(path), outcome).status == "built"


@pytest.mark.parametrize("status", ["lost", "timeout"])
def test_a_worker_that_did_not_come_up_again_takes_back_nothing(tmp_path, status):
    path = tmp_path / "journal.jsonl"
    for _ in range(2):
        journal = Journal(path)
        found = record(journal, lambda: outcome(status), timeout=5.0)
        assert found.status in (status, "skipped")
        record(journal, absent, timeout=10.0)
    found = record(Journal(path), never if status == "lost" else outcome, timeout=5.0)
    assert found.status == "skipped"


@pytest.mark.parametrize("status", ["built", "failed"])
def test_a_result_between_says_that_the_machine_stands(tmp_path, status):
    path = tmp_path / "journal.jsonl"
    assert ends_halfwise(path)
    record(Journal(path), lambda: outcome(status))
    assert ends_halfwise(path)
    assert record(Journal(path), outcome).status == "built"


def test_runs_elsewhere_and_runs_without_the_build_do_not_count(tmp_path):
    path = tmp_path / "journal.jsonl"
    assert ends_halfwise(path)
    Journal(path, "TensorRT 8.6.0, H200")
    Journal(path)
    assert record(Journal(path), outcome).status == "built"


def test_more_time_that_ended_halfwise_is_no_time_out(tmp_path):
    path = tmp_path / "journal.jsonl"
    record(Journal(path), lambda: outcome("timeout"), timeout=0.5)
    assert ends_halfwise(path)  # with ten seconds
    assert record(Journal(path), outcome, timeout=10.0).status == "built"


def test_an_interrupted_build_may_be_tried_again(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(journal, interrupted)
    assert not journal.remembers
    assert not Journal(journal.path).remembers
    assert record(journal, outcome).status == "built"


@pytest.mark.parametrize("status", ["built", "failed", "lost"])
def test_other_ends_may_be_tried_again(tmp_path, status):
    path = tmp_path / "journal.jsonl"
    record(Journal(path), lambda: outcome(status))
    assert record(Journal(path), outcome).status == "built"


@pytest.mark.parametrize(
    ("first", "second", "skipped"),
    [(10.0, 10.0, True), (10.0, 5.0, True), (10.0, 20.0, False), (10.0, None, False)],
)
def test_more_time_is_another_try(tmp_path, first, second, skipped):
    path = tmp_path / "journal.jsonl"
    record(Journal(path), lambda: outcome("timeout"), timeout=first)
    found = record(Journal(path), outcome, timeout=second)
    assert (found.status == "skipped") == skipped


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interruption_says_nothing_against_the_build(tmp_path, error):
    path = tmp_path / "journal.jsonl"

    def build():
        raise error

    with pytest.raises(error):
        record(Journal(path), build)
    assert record(Journal(path), outcome).status == "built"


def test_a_crash_elsewhere_says_nothing_about_here(tmp_path):
    path = tmp_path / "journal.jsonl"
    record(Journal(path, "TensorRT 8.6.0, H200"), lambda: outcome("crashed"))
    assert record(Journal(path, "TensorRT 10.0.1, H200"), outcome).status == "built"
    assert record(Journal(path, "TensorRT 8.6.0, H200"), never).status == "skipped"


def test_a_line_that_was_cut_off_is_dropped(tmp_path):
    path = tmp_path / "journal.jsonl"
    record(Journal(path), lambda: outcome("crashed"))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"event": "beg')
    journal = Journal(path)
    assert path.read_bytes() == whole + b'{"event": "resume"}\n'
    assert record(journal, never).status == "skipped"


@pytest.mark.parametrize(
    "line",
    [
        b"what?",
        b"[]",
        b'{"event": "end"}',
        b"[" * 100_000,
        b'{"event":"end","where":"","key":"k","outcome":{"status":1}}',
        b'{"event":"begin","where":"","key":"k","timeout":"soon"}',
    ],
)
def test_what_is_no_journal(tmp_path, line):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(RecordMismatch, match="Line 1 of the journal"):
        Journal(path)
    assert path.stat().st_size == len(line) + 1


def test_a_journal_that_cannot_be_written_loses_no_build(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    assert record(journal, outcome) == outcome()
    path.unlink()
    path.mkdir()
    assert record(journal, outcome) == outcome()
    path.rmdir()
    assert record(journal, outcome) == outcome()
    assert not path.exists()
