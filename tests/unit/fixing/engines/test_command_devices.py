from types import SimpleNamespace

from halfwise.case import EngineSettings
from halfwise.fixing.engines.command import Named, Shared, _kinds
from tests.unit.reporting.engine_runs import engines


def worker(gpu, version="8.6.1"):
    info = engines().worker.model_copy(update={"gpu": gpu, "tensorrt": version})
    return SimpleNamespace(info=info)


def test_workers_of_the_same_gpu_version_and_settings_are_of_one_kind():
    workers = {
        "a": worker("Orin"),
        "b": worker("A100"),
        "c": worker("Orin"),
        "d": worker("Orin", "10.0.1"),
        "e": worker("Orin"),
    }
    settings = dict.fromkeys(workers, EngineSettings())
    settings["e"] = EngineSettings(optimization_level=0)
    found = _kinds(workers, settings)
    assert {name: list(kind.workers) for name, kind in found.items()} == {
        "a": ["a", "c"],
        "b": ["b"],
        "d": ["d"],
        "e": ["e"],
    }


class Listener:
    def __init__(self):
        self.told = []

    def stage(self, name, total=None):
        self.told.append(("stage", name, total))

    def step(self, done, total=None, of="", *, most=False):
        self.told.append(("step", done, total, of, most))

    def left(self, seconds):
        self.told.append(("left", seconds))

    def expect(self, seconds, of):
        self.told.append(("expect", seconds, of))

    def note(self, line):
        self.told.append(("note", line))


def test_what_a_device_tells_bears_its_name():
    listener = Listener()
    shared = Shared(listener)
    one = Named(shared, "orin")
    one.stage("engines", 3)
    one.step(1, 2)
    one.left(9.0)
    one.expect(9.0, "loading")
    one.note("build 1")
    shared.step(1, 3, "samples", most=True)
    shared.left(8.0)
    shared.expect(7.0, "loading")
    shared.note("done")
    assert listener.told == [
        ("stage", "engines on orin", 3),
        ("note", "orin: build 1"),
        ("step", 1, 3, "samples", True),
        ("left", 8.0),
        ("expect", 7.0, "loading"),
        ("note", "done"),
    ]
