from contextvars import copy_context

from halfwise.progress import Silent, interruption, offered


def test_silence(capsys):
    watcher = Silent()
    watcher.stage("search", 10)
    watcher.step(3, 10)
    watcher.note("a line")
    assert capsys.readouterr() == ("", "")


def test_ctrl_c_is_taken_once_and_only_where_there_is_something():
    with offered() as made:
        assert not made.take()
        made.ready = True
        assert made.take()
        assert made.asked
        assert not made.overdue
        assert not made.take()
        made.at -= 60
        assert made.overdue


def test_what_runs_in_the_block_finds_it_in_other_threads_too():
    with offered() as made:
        assert interruption() is made
        assert copy_context().run(interruption) is made
    assert interruption() is not made


def test_nobody_asks_where_none_is_offered():
    interruption().ready = True
    assert not interruption().ready
