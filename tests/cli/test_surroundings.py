"""Whole commands in bad surroundings are bench/attacks/surroundings.py."""

import errno
import io
import os
import resource
import signal
import sys

import pytest

from halfwise.cli import demand_folder, surroundings, usage_error
from halfwise.errors import UsageError
from halfwise.progress import interruption
from halfwise.user_code import guarded


class Failing(io.StringIO):
    """A stream on a disk that is full, or a pipe that nobody reads."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def write(self, _):
        raise OSError(self.number, "no")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE, errno.EIO])
def test_a_standard_error_that_fails_ends_nothing(monkeypatch, number):
    monkeypatch.setattr(sys, "stderr", Failing(number))
    with surroundings():
        sys.stderr.write("lost")
        sys.stderr.flush()


def test_a_reader_that_is_gone_ends_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Failing(errno.EPIPE))
    with surroundings():
        sys.stdout.write("lost")


def test_a_result_that_cannot_be_written_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Failing(errno.ENOSPC))
    with surroundings(), pytest.raises(OSError, match="no") as failed:
        sys.stdout.write("lost")
    error = usage_error(failed.value)
    assert error is not None
    assert "standard output" in error.message


def test_asking_whether_a_stream_takes_bytes_writes_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Failing(errno.ENOSPC))
    with surroundings():
        assert sys.stdout.write("") == 0
        with pytest.raises(TypeError):
            sys.stdout.write(b"")  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_ends_a_process_does_what_ctrl_c_does(number):
    before = signal.signal(number, signal.SIG_DFL)  # Under nohup, the tests ignore one.
    try:
        with surroundings() as ended:
            assert ended.exit_code == 130
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
            assert ended.exit_code == 128 + number
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_what_ends_a_process_ends_one_in_the_background():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with surroundings() as ended:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            assert ended.exit_code == 128 + signal.SIGTERM
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with surroundings():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_few_open_files_become_as_many_as_may_be():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, before[1]))
        with surroundings():
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 100
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_working_directory_that_is_gone(tmp_path, monkeypatch):
    demand_folder()
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UsageError, match="The working directory cannot be used"):
        demand_folder()


@pytest.mark.parametrize(
    ("number", "name", "words"),
    [
        (errno.ENOSPC, None, "no space left."),
        (errno.EDQUOT, "a/b", "no space left for a/b"),
        (errno.EMFILE, "a/b", "Too many files are open"),
        (errno.EACCES, b"a\xff", "a\udcff cannot be used: Permission denied"),
        (errno.EIO, None, "The system reported: Input/output error."),
        (errno.EROFS, "a/b", "a/b cannot be used: Read-only file system"),
    ],
)
def test_errors_of_the_system_are_one_sentence(number, name, words):
    error = usage_error(OSError(number, os.strerror(number), name))
    assert error is not None
    assert words in error.message


def test_an_error_about_no_file_may_be_a_fault_of_halfwise():
    assert usage_error(OSError(errno.EBADF, "Bad file descriptor")) is None


def test_the_first_ctrl_c_keeps_what_there_is_and_the_second_ends(capfd):
    with surroundings() as ended:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        interruption().ready = True
        signal.raise_signal(signal.SIGINT)
        assert interruption().asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert ended.exit_code == 130
    assert "Ctrl-C again" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


@pytest.mark.parametrize("on_ctrl_c", [signal.default_int_handler, signal.SIG_IGN])
def test_what_else_ends_a_process_keeps_what_there_is_too(on_ctrl_c):
    before = signal.signal(signal.SIGINT, on_ctrl_c)
    try:
        with surroundings() as ended:
            interruption().ready = True
            signal.raise_signal(signal.SIGTERM)
            assert interruption().asked
            signal.raise_signal(signal.SIGTERM)  # `timeout` sends two
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGHUP)
            assert ended.exit_code == 128 + signal.SIGHUP
        assert signal.getsignal(signal.SIGINT) == on_ctrl_c
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_in_code_of_the_user_is_not_lost():
    with surroundings():
        interruption().ready = True
        with guarded("f.py:load"):
            signal.raise_signal(signal.SIGINT)
        assert interruption().asked
        with pytest.raises(KeyboardInterrupt), guarded("f.py:load"):
            signal.raise_signal(signal.SIGINT)
