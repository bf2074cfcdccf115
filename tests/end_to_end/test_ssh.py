"""A worker behind a real sshd on loopback."""

import getpass
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from halfwise.errors import BackendMissing
from halfwise.tensorrt import link
from halfwise.tensorrt.client import Worker
from halfwise.tensorrt.failures import EngineFailed
from halfwise.tensorrt.workers import configuration
from halfwise.tools import doctor as worker_facts
from tests.processes import children_of, end, is_running, wait_for
from tests.workers import told_source

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
pytestmark = pytest.mark.skipif(
    not (SSHD and shutil.which("ssh") and shutil.which("ssh-keygen")),
    reason="THE WORKER IS NOT TESTED OVER SSH: sshd, ssh or ssh-keygen is missing, and "
    "tools/get-test-packages could not install it (Debian: openssh-server, openssh-client)",
)

FEEDS = {"x": np.zeros((1, 2), np.float32), "n": np.array([2], np.int32)}

# What the login prints before the command runs, as a .bashrc or a wrapper does: text, control
# characters, and the beginning of a frame's marker.
_LOGIN = r"""#!/bin/sh
printf 'Welcome to orin\r\n\033[1mLast login: never\033[0m\n\000\377HALFWI'
echo 'quota: fine' >&2
eval "$SSH_ORIGINAL_COMMAND"
"""
_CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PermitUserEnvironment no
SetEnv HALFWISE_CACHE={folder}/cache TMPDIR={folder}
Banner {folder}/banner
ForceCommand {folder}/login
LogLevel VERBOSE
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Run sshd as this user on a free port; give its process and the words of an ssh to it."""
    folder = tmp_path_factory.mktemp("sshd")
    for name in ("host_key", "user_key", "strange_key"):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(keygen, check=True)
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
    (folder / "banner").write_text("Authorised use only\n")
    (folder / "login").write_text(_LOGIN)
    (folder / "login").chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "config").write_text(_CONFIG.format(port=port, folder=folder))
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # root's sshd insists on it
    log = folder / "log"
    command = [str(SSHD), "-D", "-f", str(folder / "config"), "-E", str(log)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        wait_for(lambda: _listens(port) or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        host_key = (folder / "host_key.pub").read_text()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}")
        yield (
            process,
            [
                *("ssh", "-F", "none", "-p", str(port), "-i", str(folder / "user_key")),
                *("-o", f"UserKnownHostsFile={folder}/known_hosts", "-o", "BatchMode=yes"),
                *("-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none"),
                f"{getpass.getuser()}@127.0.0.1",
            ],
        )
    finally:
        end(process)


def _listens(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.fixture
def ssh(server):
    """The words of a command that reaches the server."""
    return server[1]


@pytest.fixture
def told(monkeypatch):
    """Workers answer as if TensorRT were there."""
    monkeypatch.setattr(link, "worker_source", told_source)


def test_the_worker_as_it_is_comes_up(ssh):
    with Worker("loopback", [*ssh, sys.executable]) as worker:
        info = worker.info
    assert info.python == ".".join(map(str, sys.version_info[:3]))
    assert "cannot import tensorrt" in info.trouble
    assert info.command[0] == "ssh"


@pytest.mark.usefixtures("told")
def test_files_and_arrays_travel(ssh, tmp_path):
    data = os.urandom(1 << 20) * 20
    (tmp_path / "e").write_bytes(data)
    feeds = FEEDS | {"x": np.arange(3 << 20, dtype=np.float32).reshape(-1, 2)}
    with Worker("loopback", [*ssh, sys.executable]) as worker:
        engine = worker.upload(tmp_path / "e")
        assert Path(engine.path).read_bytes() == data
        assert worker.fetch(engine, tmp_path / "back").bytes == len(data)
        outputs = worker.run(engine, 0, feeds)
        np.testing.assert_array_equal(outputs["y"], feeds["x"])
    assert (tmp_path / "back").read_bytes() == data


@pytest.mark.usefixtures("told")
def test_a_segmentation_fault_there_keeps_its_signal(ssh, tmp_path):
    (tmp_path / "e").write_bytes(b"engine")
    with Worker("loopback", [*ssh, sys.executable]) as worker:
        engine = worker.upload(tmp_path / "e")
        with pytest.raises(EngineFailed) as failed:
            worker.run(engine, 9, FEEDS)
        assert (failed.value.status, failed.value.signal) == ("crashed", "SIGSEGV")
        assert worker.run(engine, 0, FEEDS).keys() == {"y", "m"}


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("side", ["ssh", "sshd"])
def test_a_connection_that_breaks_is_made_again(server, tmp_path, side):
    process, ssh = server
    (tmp_path / "e").write_bytes(b"engine")
    with Worker("loopback", [*ssh, sys.executable]) as worker:
        engine = worker.upload(tmp_path / "e")
        worker.run(engine, 0, FEEDS)
        there = children_of(process.pid)
        assert len(there) >= 3  # the session, the login, the worker
        sessions = [pid for pid in there if _name(pid).startswith("sshd")]
        assert worker.process_id is not None
        victims = [worker.process_id] if side == "ssh" else sessions
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        assert worker.run(engine, 0, FEEDS).keys() == {"y", "m"}
        wait_for(lambda: not any(map(is_running, there)))


@pytest.mark.usefixtures("told")
def test_nothing_is_left_on_the_other_side(server):
    process, ssh = server
    with Worker("loopback", [*ssh, sys.executable]):
        there = children_of(process.pid)
        assert there
    wait_for(lambda: not any(map(is_running, there)))


def _name(process_id):
    return Path(f"/proc/{process_id}/comm").read_text(encoding="utf-8")


def test_a_login_that_is_refused_says_so(ssh):
    key = ssh.index("-i") + 1
    other = [*ssh[:key], ssh[key].replace("user_key", "strange_key"), *ssh[key + 1 :]]
    with pytest.raises(BackendMissing, match="Permission denied") as refused:
        Worker("loopback", [*other, sys.executable]).__enter__()
    assert "ssh ended with status 255" in refused.value.message
    assert "without a password" in refused.value.hint


def test_an_interpreter_that_is_not_there_says_so(ssh):
    with pytest.raises(BackendMissing, match="/nowhere/python3: not found"):
        Worker("loopback", [*ssh, "/nowhere/python3"]).__enter__()


def test_a_terminal_is_refused(ssh):
    with pytest.raises(BackendMissing, match="halfwise needs pipes there, not a terminal") as error:
        Worker("loopback", [ssh[0], "-tt", *ssh[1:], sys.executable]).__enter__()
    assert "RequestTTY" in error.value.hint


def test_a_host_that_does_not_listen():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["ssh", "-F", "none", "-p", str(port), "127.0.0.1", "python3"]
    with pytest.raises(BackendMissing, match="Connection refused"):
        Worker("loopback", command).__enter__()


def test_doctor_shows_it(ssh, tmp_path, call, monkeypatch):
    monkeypatch.setattr(worker_facts, "ANSWER_SECONDS", 600.0)
    words = shlex.join([*ssh, sys.executable])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    configuration().parent.mkdir()
    configuration().write_text(f"[workers]\nloopback = '''{words}'''\n")
    done = call("doctor")
    assert done.code == 0, done.err
    assert "worker loopback TensorRT" in done.out


@pytest.mark.parametrize("quoted", [False, True])
def test_one_ssh_behind_another(ssh, quoted):
    inner = ["env", "A=1", *ssh, sys.executable]
    command = ["env", "B=2", *ssh, *([shlex.join(inner)] if quoted else inner)]
    with Worker("twice", command) as worker:
        assert worker.info.python
