from halfwise.progress import PERCENT, Silent, Weighed


def test_silence(capsys):
    watcher = Silent()
    watcher.stage("search", 10)
    watcher.step(3, 10)
    watcher.note("a line")
    assert capsys.readouterr() == ("", "")


def test_unequal_steps_are_told_by_weight():
    told = []
    work = Weighed(lambda *step: told.append(step))
    work.expect(2.5)
    work.did(1.5)
    work.expect(4.0)
    work.did(5.0)
    assert told == [
        (d, t, PERCENT) for d, t in ((0, 2500), (1500, 2500), (1500, 6500), (6500, 6500))
    ]
    Weighed().did(1.0)
