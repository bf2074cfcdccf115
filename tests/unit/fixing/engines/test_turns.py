from itertools import count

from halfwise.fixing.engines.measure import ROUNDS, race


def laps(**times):
    """Return what runs engines, each with the times that are repeated, and what was run."""
    ran = {name: count() for name in times}

    def lap(name):
        i = next(ran[name])
        given = times[name]
        return given[i % len(given)]

    return lap


def test_each_runs_seven_rounds_in_turn():
    times = race({"a": "a", "b": "b"}, laps(a=[1.0], b=[1.2, 1.1]))
    assert times == {"a": (1.0,) * ROUNDS, "b": (1.2, 1.1, 1.2, 1.1, 1.2, 1.1, 1.2)}
    assert race({}, laps()) == {}


def test_one_that_fails_has_no_times():
    engines = dict.fromkeys("abc")
    times = race({n: n for n in engines}, laps(a=[1.0, 1.3, 0.8], b=[1.0, None], c=[1.0]))
    assert times["b"] == ()
    assert len(times["a"]) == ROUNDS
    assert race({"a": "a"}, laps(a=[None])) == {"a": ()}
