from halfwise.fixing.engines.command import Named
from halfwise.fixing.engines.delivery import Relay


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
    shared = Relay(listener)
    shared.release()
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
