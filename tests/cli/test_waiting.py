from tests.unit.reporting.test_pieces import inspection


def test_only_what_uses_a_gpu_waits_for_one(call, answer):
    calls = answer("inspect", inspection())
    code, _, _ = call("inspect", "e.engine", "--run-timeout", "3", "--wait-timeout", "5")
    assert code == 0
    assert (calls[0][1]["run_timeout"], calls[0][1]["wait_timeout"]) == (3, 5)
    code, _, err = call("observe", "m.onnx", "--inputs", "x.npz", "--wait-timeout", "5")
    assert code == 2
    assert "--wait-timeout" in err
