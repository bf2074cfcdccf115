import os
import shlex
import signal
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.tensorrt.answers import Unfit
from halfwise.tensorrt.transport import (
    Connection,
    Frame,
    Lost,
    Unpacker,
    full_command,
    worker_source,
)
from halfwise.tensorrt.worker import MAGIC, pack
from tests.processes import children_of, is_running, kill, wait_for
from tests.workers import anything, told_source

# Relays frames one by one, and prints between them: text, control characters, parts of a marker.
_CHATTY = r"""
import os, subprocess, sys
from halfwise.tensorrt.transport import Unpacker
from halfwise.tensorrt.worker import MAGIC, pack
noise = b"Welcome to orin\r\n\x1b[1mLast login\x1b[0m " + MAGIC[:-1] + b"\n" + MAGIC[:3]
os.write(1, noise)
os.write(2, b"motd on stderr\n")
worker = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
unpacker = Unpacker()
while data := os.read(worker.stdout.fileno(), 100):
    frames, between = unpacker.feed(data)
    sys.stdout.buffer.write(between)
    for header, payload in frames:
        sys.stdout.buffer.write(pack(header, payload) + noise)
    sys.stdout.buffer.flush()
"""


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HALFWISE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def script(tmp_path):
    """Write an executable script; return its path."""

    def write(name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    return write


@pytest.fixture
def connect():
    """Connect to a worker without TensorRT; close what is left open."""
    opened = []

    def connect(*command, source=None):
        opened.append(Connection(command or [sys.executable], source or told_source()))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close(patience=1.0)


def hello(connection, **options):
    return connection.ask({"op": "hello"}, admit=anything, **options)[0]


def test_the_worker_as_it_is_tells_what_is_there(connect):
    answer = hello(connect(source=worker_source()))
    assert answer["kind"] == "result"
    assert answer["executable"] == sys.executable
    assert answer["python"] == ".".join(map(str, sys.version_info[:3]))


def test_banners_before_and_between_frames(connect):
    heard: list[Any] = []
    connection = connect(sys.executable, "-c", _CHATTY, sys.executable)
    assert hello(connection, heard=heard.append)["tensorrt"] == "8.6.0"
    for size in (0, 1, 300_000):
        payload = os.urandom(size)
        answer, data = connection.ask({"op": "flood"}, payload, admit=anything, heard=heard.append)
        assert (answer["bytes"], data) == (size, payload)
    noise = {frame["text"] for frame in heard if frame.get("severity") == "noise"}
    assert {"Welcome to orin", "motd on stderr"} <= noise
    assert sum(frame.get("severity") == "verbose" for frame in heard) == 3 * 2000


def test_large_frames_both_ways_do_not_block_each_other(connect):
    payload = os.urandom(1 << 20) * 24
    connection = connect()
    requests = [connection.ask({"op": "flood"}, payload, admit=anything) for _ in range(2)]
    assert all(data == payload for _, data in requests)


@pytest.mark.parametrize(
    ("shell", "reason", "printed"),
    [
        ("echo 'no python3 here' >&2; exit 127", "sh ended with status 127", "no python3 here"),
        ("printf 'cut off'; exit 0", "sh ended with status 0", "cut off"),
        ("echo bye; kill -9 $$", "sh was ended by SIGKILL", "bye"),
        ("exec <&-; sleep 0.2; exit 3", "sh ended with status 3", None),
        ("exec >&-; sleep 60", "sh closed its output", None),
    ],
)
def test_a_command_that_ends(connect, shell, reason, printed):
    connection = connect("sh", "-c", shell)
    with pytest.raises(Lost) as lost:
        hello(connection)
    assert lost.value.reason == reason
    assert lost.value.printed == ((printed,) if printed else ())
    assert not is_running(connection.process_id)


def test_a_command_that_is_not_there():
    with pytest.raises(FileNotFoundError):
        Connection(["/nowhere/python3"], b"")


@pytest.mark.parametrize("shell", ["sleep 60", "while :; do echo y; done", "cat >/dev/null"])
def test_a_command_that_never_answers(connect, shell):
    connection = connect("sh", "-c", shell)
    with pytest.raises(Lost, match=r"sh did not answer within 0.5 s"):
        hello(connection, limit=0.5)
    assert not is_running(connection.process_id)


def test_noise_fills_no_memory(connect):
    connection = connect("sh", "-c", "head -c 3000000 /dev/zero; yes a | head -100; exit 1")
    with pytest.raises(Lost) as lost:
        hello(connection)
    assert len(lost.value.printed) <= 30
    assert max(map(len, lost.value.printed)) <= 2000


@pytest.mark.parametrize("version", [(2, 7, 18), (3, 7, 16)])
def test_a_python_that_is_too_old_says_so(connect, script, version):
    shown = ".".join(map(str, version))
    old = script(
        "python3",
        f"#!{sys.executable}\nimport sys\nsys.version_info, sys.version = {version}, '{shown}'\n"
        "exec(sys.argv[2])\n",
    )
    with pytest.raises(Lost) as lost:
        hello(connect(old))
    needs = f"halfwise needs Python 3.8 or later there; this is Python {shown}"
    assert lost.value.printed == (needs,)


def test_modules_in_the_working_directory_are_not_imported(connect, monkeypatch, tmp_path):
    (tmp_path / "tempfile.py").write_text("raise SystemExit('the wrong tempfile')")
    monkeypatch.chdir(tmp_path)
    assert hello(connect())["kind"] == "result"


@pytest.mark.parametrize(
    ("words", "levels"),
    [
        (["python3"], 0),
        (["/opt/ssh/bin/python3"], 0),
        (["sudo", "-u", "me", "docker", "exec", "-i", "box", "python3"], 0),
        (["docker", "run", "-i", "image", "python3"], 0),
        (["kubectl", "exec", "-i", "pod", "--", "python3"], 0),
        (["ssh", "orin", "python3"], 1),
        (["/usr/bin/ssh", "-p", "22", "orin", "docker", "run", "-i", "image", "python3"], 1),
        (["env", "A=1", "ssh", "-i", "/keys/.ssh/id", "orin", "python3"], 1),
        (["docker", "run", "-i", "image", "ssh", "orin", "python3"], 1),
        (["ssh", "gate", "ssh", "orin", "python3"], 2),
        (["ssh", "gate", "cd /x && ssh orin python3"], 2),
    ],
)
def test_the_bootstrap_is_quoted_for_every_ssh(words, levels):
    *begin, minus_c, bootstrap = full_command(words, 1234)
    assert (begin, minus_c) == (words, "-c")
    for _ in range(levels):
        (bootstrap,) = shlex.split(bootstrap)
    assert bootstrap.startswith("import io,sys;")
    assert "read(1234)" in bootstrap
    assert not set(bootstrap) & set("'!\n")


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_what_ssh_does_to_the_words(connect, script, shell):
    ssh = script("ssh", f'#!/bin/sh\nshift\nexec {shell} -c "$*"\n')
    assert hello(connect(ssh, "orin", sys.executable))["kind"] == "result"
    twice = connect(ssh, "gate", ssh, "orin", sys.executable)
    assert hello(twice)["kind"] == "result"


def test_time_outs_are_the_workers(connect):
    connection = connect()
    run = {"op": "run", "engine": "0" * 64, "profile": 8}
    connection.ask({"op": "put", "sha256": _EMPTY, "offset": 0, "last": True}, admit=anything)
    answer, _ = connection.ask(run | {"engine": _EMPTY}, admit=anything, timeout=0.3)
    assert (answer["kind"], answer["signal"]) == ("died", "SIGALRM")
    assert hello(connection)["kind"] == "result"


_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_a_connection_that_hangs_is_lost(connect):
    connection = connect()
    hello(connection)
    for process in (connection.process_id, *children_of(connection.process_id)):
        os.kill(process, signal.SIGSTOP)
    with pytest.raises(Lost, match=r"did not answer within 0.5 s"):
        connection.ask({"op": "hello"}, admit=anything, timeout=0.1, limit=0.5)
    assert not is_running(connection.process_id)


@pytest.mark.parametrize("how", ["close", "kill", "lose"])
def test_no_process_is_left(connect, how):
    connection = connect("sh", "-c", 'sleep 600 & "$@"; exit $?', "sh", sys.executable)
    pids = connection.ask({"op": "spawn"}, admit=anything)[0]["pids"]
    everything = {connection.process_id, *children_of(connection.process_id), *pids}
    assert len(everything) == 5  # sh, its sleep, supervisor, child and its sleep
    if how == "lose":
        kill(pids[:2])  # a connection that breaks ends supervisor and child
        with pytest.raises(Lost, match="sh ended with status 137"):
            hello(connection)
    else:
        connection.close(patience=5.0 if how == "close" else 0.0)
    wait_for(lambda: not any(map(is_running, everything - {pids[2]})))
    if how == "close":
        assert not is_running(pids[2])
    kill([pids[2]])


def test_a_stubborn_wrapper_ends_too(connect, tmp_path):
    script = "trap '' TERM HUP INT; : > \"$0\"; while :; do sleep 1; done"
    connection = connect("sh", "-c", script, str(tmp_path / "stubborn"))
    wait_for((tmp_path / "stubborn").exists)
    connection.close(patience=0.1)
    assert not is_running(connection.process_id)
    connection.close()


def test_it_ends_with_halfwise():
    code = (
        "import os, sys\n"
        "from halfwise.tensorrt.transport import Connection\n"
        "from tests.workers import anything, told_source\n"
        "connection = Connection([sys.executable], told_source())\n"
        "print(*connection.ask({'op': 'spawn'}, admit=anything)[0]['pids'], flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 3, done.stderr
    wait_for(lambda: not any(map(is_running, pids)))


@pytest.fixture
def saying(script, connect):
    """Connect to what is no worker, and says this again and again: a Python expression."""

    def saying(before, again):
        text = (
            f"#!{sys.executable}\nimport sys, time\n"
            "from halfwise.tensorrt.worker import MAGIC, LENGTHS, pack\n"
            "say = sys.stdout.buffer.write\n"
            f"say({before})\nwhile True:\n    say({again}); sys.stdout.flush(); time.sleep(0.01)\n"
        )
        return connect(script("python3", text))

    return saying


@pytest.mark.parametrize(
    "again",
    [
        'pack({"kind": "log", "id": 1, "severity": "info", "text": "still here"})',
        'pack({"kind": "started", "id": 1})',
        'b"y\\n"',
        "b'.'",
    ],
)
def test_nothing_that_goes_on_keeps_a_request_alive(saying, again):
    with pytest.raises(Lost, match=r"did not answer within 1 s"):
        hello(saying("b''", again), limit=1.0)


def test_a_reply_that_comes_byte_by_byte_has_the_time_of_its_request(saying):
    begin = 'pack({"kind": "result", "id": 1, "text": "x" * 500})[:-400]'
    with pytest.raises(Lost, match=r"did not answer within 1 s"):
        hello(saying(begin, "b'x'"), limit=1.0)


def test_an_answer_to_another_request_ends_it_at_once(saying):
    connection = saying("b''", 'pack({"kind": "result", "id": 7})')
    with pytest.raises(Unfit, match="a request that was not made"):
        connection.ask({"op": "hello"}, limit=300.0)
    assert not is_running(connection.process_id)


@pytest.mark.parametrize("text", ["[]", "{!", "no"])
def test_a_header_that_cannot_be_read_ends_it_at_once(saying, text):
    size = f"{len(text)}, 0"
    connection = saying("b''", f"MAGIC + LENGTHS.pack({size}) + {text.encode()!r}")
    with pytest.raises(Unfit, match="a header that cannot be read"):
        connection.ask({"op": "hello"}, limit=300.0)
    assert not is_running(connection.process_id)


# Parts of the marker.
_noise = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.integers(1, len(MAGIC) - 1).map(lambda n: MAGIC[:n]),
    ),
    max_size=4,
).map(b"".join)
_headers = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9), max_size=3)
_payloads = st.binary(max_size=60) | st.just(MAGIC * 2)


@given(st.lists(st.tuples(_noise, _headers, _payloads), max_size=5), st.data())
def test_any_noise_and_any_chunks(frames, data):
    stream = b"".join(noise + pack(header, payload) for noise, header, payload in frames)
    unpacker, found, noise = Unpacker(), list[Frame](), b""
    while stream:
        count = data.draw(st.integers(1, len(stream)))
        complete, between = unpacker.feed(stream[:count])
        found, noise = found + complete, noise + between
        stream = stream[count:]
    assert found == [(header, payload) for _, header, payload in frames]
    assert noise == b"".join(noise for noise, _, _ in frames)


@pytest.mark.parametrize("count", [26, 300, 5000, 9020])
def test_a_frame_that_a_death_cut_off_hides_no_other(count):
    cut = pack({"kind": "log", "text": "x" * 9000})[:count]
    unpacker = Unpacker()
    found = unpacker.feed(cut)[0] + unpacker.feed(pack({"kind": "died"}))[0]
    assert [header for header, _ in found] == [{"kind": "died"}]


@given(st.binary())
def test_noise_alone_is_never_a_frame(data):
    unpacker = Unpacker()
    assert unpacker.feed(data.replace(MAGIC, b""))[0] == []
