from halfwise.fixing.devices.telling import Named, Shared


class Listener:
    def __init__(self):
        self.told = []

    def stage(self, name, total=None):
        self.told.append(("stage", name, total))

    def step(self, done, total=None):
        self.told.append(("step", done, total))

    def left(self, seconds):
        self.told.append(("left", seconds))

    def note(self, line):
        self.told.append(("note", line))


def test_what_a_device_tells_bears_its_name():
    listener = Listener()
    shared = Shared(listener)
    one = Named(shared, "orin")
    one.stage("engines", 3)
    one.step(1, 2)
    one.left(9.0)
    one.note("build 1")
    shared.step(1, 3)
    shared.left(8.0)
    shared.note("done")
    assert listener.told == [
        ("stage", "engines on orin", 3),
        ("note", "orin: build 1"),
        ("step", 1, 3),
        ("left", 8.0),
        ("note", "done"),
    ]
