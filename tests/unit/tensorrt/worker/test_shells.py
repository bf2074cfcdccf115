import shlex

import pytest

from halfwise.tensorrt.worker.shells import remote_shells


@pytest.mark.parametrize(
    ("command", "shells"),
    [
        ("python3", 0),
        ("/opt/ssh/bin/python3", 0),
        ("/opt/venv/ssh", 1),
        ("ssh host python3", 1),
        ("/usr/bin/ssh -p 22 host python3", 1),
        ("ssh -p22 -o User=me host python3", 1),
        ("ssh -J jump host python3", 1),
        ("ssh -i ssh host python3", 1),
        ("ssh -T -qi key host -p 22 python3", 1),
        ("ssh ssh python3", 1),
        ("ssh a ssh b python3", 2),
        ("ssh a -p 22 ssh -J ssh b ssh c python3", 3),
        ("ssh a exec ssh b python3", 2),
        ("ssh a 'ssh b python3'", 2),
        ("ssh a 'cd /x; A=1 ssh b python3'", 2),
        ("ssh a 'ssh b true && python3'", 1),
        ("ssh a cat /home/me/.ssh/ssh", 1),
        ("ssh a \"don't", 1),
        ("ssh", 1),
        ("sshpass -f F ssh host python3", 1),
        ("sshpass -e ssh host python3", 1),
        ("env A=1 ssh host python3", 1),
        ("env -i -u ssh A=1 ssh host python3", 1),
        ("env ssh=1 python3", 0),
        ("timeout -k 5 60 ssh host python3", 1),
        ("sudo -u ssh python3", 0),
        ("sudo -u me -- ssh host python3", 1),
        ("docker exec -i ssh python3", 0),
        ("docker -H tcp://there exec -i --user me ssh python3", 0),
        ("docker run -i --rm --gpus all -v /x/ssh image python3", 0),
        ("docker run -i --rm --gpus=all image ssh host python3", 1),
        ("ssh cloud docker run -i --rm --gpus all IMAGE python3", 1),
        ("podman exec -i box ssh host python3", 1),
        ("kubectl exec -i ssh -- python3", 0),
        ("kubectl exec -i pod -c ssh -- ssh host python3", 1),
        ("kubectl exec -i pod ssh", 0),
        ("unknown ssh host python3", 0),
    ],
)
def test_a_shell_for_each_ssh_that_is_run(command, shells):
    try:
        words = shlex.split(command)
    except ValueError:  # what another shell has to complain about
        words = ["ssh", "a", command[6:]]
    assert remote_shells(words) == shells
