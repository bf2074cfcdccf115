"""A worker without TensorRT: the real source, with a service that does as the test says."""

from halfwise.tensorrt.transport import worker_source

_SERVICE = b'''
class _Told(Service):
    """Answers as if TensorRT were here; the first plugin of a build says how it goes."""

    def op_hello(self, request, payload):
        found, data = super().op_hello(request, payload)
        for missing in ("import_error", "cuda_error"):
            found.pop(missing, None)
        gpu = {"name": "Paper GPU", "compute_capability": "9.0", "memory": 8 << 30,
               "free": 6 << 30}
        found.update(tensorrt="8.6.0", typing=["weak"], gpus=[gpu], driver="535.1")
        return found, data

    def op_build(self, request, payload):
        how = (request["config"]["plugins"] or ["well"])[0]
        self.tell("log", severity="warning", text="Detected layernorm nodes in FP16.")
        self.started()
        if how == "plugin":
            raise Refused("plugin", "The plugin library cannot be loaded", "Its path is there.")
        if how == "parse":
            errors = [{"node": "n%d" % i, "op": "Odd", "text": "no importer"} for i in (1, 2)]
            raise Refused("parse", "The words of the worker, which names decide about", "",
                          errors=errors)
        if how != "well":
            self._misbehave(how)
        with self.store.folder(request["model"]["files"]) as folder:
            names = sorted(os.listdir(folder))
            with open(os.path.join(folder, request["model"]["main"]), "rb") as file:
                model = file.read()
        return {
            "engine": self.store.write(b"engine of " + ",".join(names).encode() + model),
            "seconds": 0.25,
            "layers": [["conv_1", "CONVOLUTION", ["conv"], True]],
            "unconstrained": dict.fromkeys(request["config"]["keep"],
                                           "no layer of the network names it"),
        }, b""

    def _misbehave(self, how):
        if how.startswith("SIG"):
            print("about to die", flush=True)
            os.kill(os.getpid(), getattr(signal, how))
        if how.startswith("exit"):
            os._exit(int(how[4:]))
        if how == "lose":
            time.sleep(0.2)  # for what was said before to arrive
            os.kill(os.getppid(), signal.SIGKILL)
        if how == "fail":
            raise Refused("build", "TensorRT built no engine", log=["no tactic"])
        time.sleep(600)

    def op_describe(self, request, payload):
        self.store.read(request["engine"])
        base = {"location": "device", "shape_tensor": False, "linear": True}
        io = [dict(base, name=name, mode=mode, dtype=dtype, shape=shape,
                   profiles=[{}] if mode == "input" else [])
              for mode, names in (("input", "xn"), ("output", "ym"))
              for name, dtype, shape in zip(names, ("float32", "int32"), ([-1, 2], [1]))]
        return {"io": io, "profiles": 1, "layers": 3, "device_bytes": 7}, b""

    def op_run(self, request, payload):
        self.store.read(request["engine"])
        if request["profile"] == 9:
            self._misbehave("SIGSEGV")
        if request["profile"] == 8:
            self._misbehave("hang")
        if request["profile"] == 7:
            self._misbehave("lose")
        if request["profile"] == 6:
            raise Refused("shape", "Input x has shape [9, 2]", "Build with another profile.")
        if request["profile"] == 5:
            raise Refused("engine", "TensorRT cannot read the engine", "Build it again.")
        outputs = [dict(given, name=name) for name, given in zip("ym", request["inputs"])]
        return {"outputs": outputs}, payload

    def op_time(self, request, payload):
        found = dict.fromkeys(("median_ms", "p99_ms"), 1.5)
        found.update(iterations=request["iterations"], device_bytes=7)
        return found, b""

    def op_inspect(self, request, payload):
        return {}, b'{"Layers": []}'

    def op_flood(self, request, payload):
        for _ in range(2000):
            self.tell("log", severity="verbose", text="x" * 2000)
        return {"bytes": len(payload)}, payload

    def op_spawn(self, request, payload):
        return {"pids": [os.getppid(), os.getpid(),
                         os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600")]}, b""


Service = _Told


if __name__ == "__main__":
'''


def anything(*_: object) -> None:
    """Admit every frame: operations that the test's service alone has may answer anything."""


def told_source() -> bytes:
    """Return the worker's source with that service in it."""
    source = worker_source()
    head, begin, tail = source.partition(b'if __name__ == "__main__":\n')
    assert begin
    return head + _SERVICE.lstrip() + tail
