"""How often the words of a worker's command are parsed by a shell on their way."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

_VALUES = {
    "ssh": frozenset("BbcDEeFIiJLlmOoPpQRSWw"),
    "sshpass": frozenset("dfpP"),
    "env": frozenset("uCS"),
    "sudo": frozenset("CDghpRrTtUu"),
    "nice": frozenset("n"),
    "timeout": frozenset("ks"),
    "stdbuf": frozenset("ioe"),
    "exec": frozenset("a"),
    "nohup": frozenset(),
    "setsid": frozenset(),
}
"""Programs that run their last operands as a command, and their short options with a value, by
their manual pages."""
_CONTAINERS = ("docker", "podman", "nerdctl")
_CONTAINER_VALUES = frozenset("acehlmpuvw")
_CONTAINER_FLAGS = frozenset(
    (
        *("--detach", "--init", "--interactive", "--no-healthcheck", "--privileged"),
        *("--publish-all", "--quiet", "--read-only", "--rm", "--tty"),
    )
)
"""Options of `docker run` and `docker exec` without a value; all other long ones have one."""
_PODS = ("kubectl", "oc")
_ENDS = re.compile(r"&&|\|\||;")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def remote_shells(command: Sequence[str]) -> int:
    """Return how many shells parse the end of `command`, one after another: one for each `ssh`.

    `ssh` counts where it is run: as the first word, as the command of another `ssh`, of a container
    or of a program that runs one in its place (`env`, `sshpass`, `sudo` …). It may be an argument
    elsewhere, such as the name of a container.
    """
    words, found = list(command), 0
    while words:
        word = words.pop(0)
        name = Path(word).name
        if name in _VALUES:
            words = _operands(words, _VALUES[name])
            if name == "ssh":
                # OpenSSH takes options behind the host too.
                words = _parsed(_operands(words[1:], _VALUES[name]))
                found += 1
            elif name == "timeout":
                words = words[1:]
        elif name in _CONTAINERS:
            start = next((i + 1 for i, word in enumerate(words) if word in ("exec", "run")), None)
            words = _operands(words[start:], _CONTAINER_VALUES, _CONTAINER_FLAGS)[1:]
        elif name in _PODS:
            words = words[words.index("--") + 1 :] if "--" in words else []
        elif not _ASSIGNMENT.match(word):
            break
    return found


def _operands(
    words: list[str], values: frozenset[str], flags: frozenset[str] | None = None
) -> list[str]:
    """Return `words` from the first that is no option on.

    `values` are short options with a value. Long ones have it in the same word, but where `flags`
    names those that have none.
    """
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        option = rest.pop(0)
        if option == "--":
            break
        if option.startswith("--"):
            takes = flags is not None and "=" not in option and option not in flags
        else:
            with_value = next((i for i, c in enumerate(option) if c in values), None)
            takes = with_value == len(option) - 1
        if takes:
            del rest[:1]
    return rest


def _parsed(words: list[str]) -> list[str]:
    """Return the last command that a shell reads in `words`, which `ssh` joins by spaces."""
    try:
        words = shlex.split(_ENDS.sub(r" \g<0> ", " ".join(words)))
    except ValueError:  # the shell there will complain
        return []
    ends = [i for i, word in enumerate(words) if _ENDS.fullmatch(word)]
    return words[ends[-1] + 1 :] if ends else words
