from halfwise.progress import Silent


def test_silence(capsys):
    watcher = Silent()
    watcher.stage("search", 10)
    watcher.step(3, 10)
    watcher.note("a line")
    assert capsys.readouterr() == ("", "")
