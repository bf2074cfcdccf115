import shlex

import pytest
import typer

from halfwise.cli.options import Display
from halfwise.cli.outcome import conclude, worker_ahead
from halfwise.store import run_json
from halfwise.tensorrt.worker.answers import BY_OP
from halfwise.tensorrt.worker.transport import taken
from tests.unit.reporting.runs import run, verdict


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 10)])
@pytest.mark.parametrize("as_json", [True, False])
def test_the_exit_code_is_the_verdict(capsys, passed, code, as_json):
    made = run(verdict=verdict(passed=passed))
    with pytest.raises(typer.Exit) as end:
        conclude(made, Display(as_json=as_json), None)
    assert end.value.exit_code == code
    out = capsys.readouterr().out
    assert (out == run_json(made)) is as_json


def test_the_worker_that_the_options_name_is_started(fake_worker):
    command = fake_worker()
    with worker_ahead({"trt_command": shlex.join(command), "target": "tensorrt"}):
        connection = taken(command)
        assert connection is not None
        answer, _ = connection.ask({"op": "hello"}, expected=BY_OP["hello"], limit=30)
        connection.close()
    assert answer["tensorrt"] == "8.6.1"


def test_what_is_wrong_with_the_options_is_told_later():
    with worker_ahead({"trt_python": "a", "trt_command": "b"}):
        pass
