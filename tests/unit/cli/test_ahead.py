import shlex

from halfwise.cli.ahead import worker_ahead
from halfwise.tensorrt.worker.answers import BY_OP
from halfwise.tensorrt.worker.transport import taken


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
