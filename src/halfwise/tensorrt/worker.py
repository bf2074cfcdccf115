"""The TensorRT worker: a single file that runs where TensorRT is, and is sent there at each start.

It needs Python ≥ 3.8, numpy and `tensorrt` 8.5 to 11.4, or else `tensorrt_rtx` from 1.4 on; it
calls CUDA only through the driver library. halfwise starts an interpreter (`python3`,
`docker run -i … python3`, `ssh orin python3`) and writes this source to its standard input; nothing
is installed there.

Two processes run it. The *child* does the work, and talks to halfwise over standard input and
output. The *supervisor* never imports TensorRT; it waits for the child to end. A segmentation
fault, an abort, an out-of-memory kill and a hang (which an alarm of the system ends) thus become
answers (`died`), with the true signal even if `ssh` or `docker` would hide it, and the next child
goes on; and a lost connection ends both.

A frame is `MAGIC`, the lengths of header and payload (big-endian u32 and u64), a JSON header and
the payload. Anything between frames, and on standard error, is noise: banners of shells and
containers, and what libraries print. Requests have
`op`, `id` (a number above 0) and optionally `timeout` in seconds. Answers have `id` and `kind`:

========== ===========================================================================
`log`      `severity`, `text`: a line of TensorRT's logger
`started`  the work itself begins, and with it the timeout
`result`   the request is done; its function describes further keys and the payload
`error`    `code`, `message`, `hint`: the request cannot be done
`died`     `signal` (`SIGALRM` after the timeout) or `status`: the child ended
========== ===========================================================================

Requests run one at a time. All kept data are files in `cache`, named by their SHA-256.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import hashlib
import importlib
import importlib.util
import json
import mmap
import os
import platform
import select
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback

PROTOCOL = 1
MAGIC = b"\x00\xffHALFWISE\xff\x01"
LENGTHS = struct.Struct(">IQ")
OLDEST = (8, 5)
NEWEST_CHECKED = (11, 4)
FIRST_UNKNOWN = (12, 0)
RTX = (((1, 6), (11, 1)), ((1, 5), (11, 0)), ((1, 4), (10, 16)))
"""From which version on TensorRT for RTX has the API of which TensorRT, the newest first; but for
weak typing, which it never has."""
CHUNK = 1 << 20
"""Bytes read or written at a time, as `files.BLOCK`."""
_UNUSED_DAYS = 14
"""As for scratch folders. Our choice."""
_FOLDER = "model-"
NUMBER = struct.Struct("=q")
"""The number of a request, in memory that supervisor and child share."""
ANSWERING = -1
"""In its place while the last answer to a request is sent."""
AFRESH = 3
"""Exit status of an idle child that cannot go on, but the next one can."""
LOOK_MILLISECONDS = 50
"""Time between two looks of the supervisor whether its child has ended. Our choice."""


# ---------------------------------------------------------------------------------------- frames


def pack(header, payload=b""):
    """Return the bytes of a frame; `header` must be JSON-serialisable, `payload` bytes."""
    text = json.dumps(header).encode()
    return b"".join((MAGIC, LENGTHS.pack(len(text), len(payload)), text, payload))


def read_frame(stream):
    """Return header and payload of the next frame, or None if the stream ends.

    Raises:
        ValueError: something else comes.
    """
    begin = stream.read(len(MAGIC) + LENGTHS.size)
    if len(begin) < len(MAGIC) + LENGTHS.size:
        return None
    if not begin.startswith(MAGIC):
        raise ValueError("no frame")
    header_bytes, payload_bytes = LENGTHS.unpack_from(begin, len(MAGIC))
    header = json.loads(stream.read(header_bytes).decode())
    return header, stream.read(payload_bytes)


def _write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


# ------------------------------------------------------------------------------------ supervisor


def supervise(requests, answers):
    """Have a child serve, and another one after each that is ended, until the requests end.

    How a child ended is an answer if it was at work.

    Args:
        requests: File descriptor from halfwise.
        answers: File descriptor to halfwise.
    """
    at_work = mmap.mmap(-1, NUMBER.size)  # shared with the child
    service, supervisor = Service(requests, answers, at_work), os.getpid()
    hang_up = select.poll()
    hang_up.register(requests, select.POLLRDHUP)
    while True:
        child = os.fork()
        if child == 0:
            _become_child(service, supervisor)
        ended, status = 0, 0
        while not ended:
            if hang_up.poll(LOOK_MILLISECONDS):
                _kill(os.kill, child)
                _kill(os.killpg, child)
                return
            ended, status = os.waitpid(child, os.WNOHANG)
        _kill(os.killpg, child)  # processes that it started
        (request,) = NUMBER.unpack_from(at_work)
        if request == ANSWERING:
            return  # what it sent of its answer would swallow all that follows
        if request:
            NUMBER.pack_into(at_work, 0, 0)
            _write_all(answers, pack(_death(request, status)))
        elif os.WIFEXITED(status) and os.WEXITSTATUS(status) != AFRESH:
            return  # there are no more requests, or it cannot read them


def _become_child(service, supervisor):
    """Serve requests in the forked process, in a session of its own; never returns."""
    try:
        os.setsid()
        _die_with(supervisor)
        # Line-buffered, so that Python's and C++'s output stay in order.
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False)
        service.serve()
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def _die_with(parent):
    """Have the system end this process when its parent ends, for whatever reason."""
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(0)


def _kill(send, number):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(number, signal.SIGKILL)


def _death(request, status):
    """Return the header that tells how a child ended at a request, by its wait status."""
    signalled = os.WIFSIGNALED(status)
    return {
        "id": request,
        "kind": "died",
        "signal": _signal_name(os.WTERMSIG(status)) if signalled else None,
        "status": None if signalled else os.WEXITSTATUS(status),
    }


def _signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# ----------------------------------------------------------------------------------------- files


class Refused(Exception):
    """A request cannot be done; becomes an `error` answer."""

    def __init__(self, code, message, hint="", **further):
        Exception.__init__(self, message)
        self.answer = dict(further, code=code, message=message, hint=hint)


class Store:
    """Files named by their SHA-256, in a folder that outlives the worker."""

    def __init__(self):
        """Create the folder: `HALFWISE_CACHE`, else under the user's cache, else temporary."""
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        self.root = os.environ.get("HALFWISE_CACHE") or os.path.join(cache, "halfwise", "worker")
        try:
            self._make()
        except OSError:
            self.root = os.path.join(tempfile.gettempdir(), f"halfwise-worker-{os.getuid()}")
            self._make()

    def _make(self):
        for folder in ("files", "timing"):
            os.makedirs(os.path.join(self.root, folder), mode=0o700, exist_ok=True)
        if not os.access(self.root, os.W_OK) or os.stat(self.root).st_uid != os.getuid():
            raise PermissionError(self.root)

    def path(self, sha256):
        """Return the path of a file, whether or not it exists."""
        return os.path.join(self.root, "files", sha256)

    def has(self, sha256):
        """Return whether the file exists; if so, mark it as used."""
        try:
            os.utime(self.path(sha256))
        except OSError:
            return False
        return True

    def there(self, sha256):
        """Return the path of an existing file.

        Raises:
            Refused: it does not exist.
        """
        if not self.has(sha256):
            raise Refused("internal", f"The worker has no file {sha256}.")
        return self.path(sha256)

    def read(self, sha256):
        """Return the bytes of a file."""
        with open(self.there(sha256), "rb") as file:
            return file.read()

    def write(self, data):
        """Store bytes; return their entry."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = self.path(sha256)
        if not self.has(sha256):
            replace(path, data)
        return {"sha256": sha256, "bytes": len(data), "path": path}

    def put(self, sha256, offset, last, data):
        """Append a chunk that begins at `offset`; the last one completes the file."""
        path = self.path(sha256)
        # Another worker may receive the same file at the same time.
        part = f"{path}.{os.getpid()}.part"
        with open(part, "r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(data)
        if last:
            os.replace(part, path)

    def remove_unused(self):
        """Remove files unused for two weeks, and folders that killed builds left behind."""
        oldest = time.time() - _UNUSED_DAYS * 86400
        files = os.scandir(os.path.join(self.root, "files"))
        folders = (e for e in os.scandir(self.root) if e.name.startswith(_FOLDER))
        for entry in (*files, *folders):
            with contextlib.suppress(OSError):
                if entry.stat().st_mtime < oldest:
                    shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)

    @contextlib.contextmanager
    def folder(self, files):
        """Yield a folder that holds `files` (dicts of name and sha256) under their names."""
        with tempfile.TemporaryDirectory(prefix=_FOLDER, dir=self.root) as folder:
            for file in files:
                path = os.path.join(folder, file["name"])
                os.makedirs(os.path.dirname(path), exist_ok=True)
                kept = self.there(file["sha256"])
                try:
                    os.link(kept, path)
                except OSError:  # a file system without links
                    shutil.copyfile(kept, path)
            yield folder


def replace(path, data):
    """Write `data` to a temporary file in the same folder, then rename it to `path`."""
    descriptor, partial = tempfile.mkstemp(dir=os.path.dirname(path))
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.replace(partial, path)


# ------------------------------------------------------------------------------------------ CUDA


_NO_GPU = (
    "The NVIDIA driver here shows no GPU.",
    "Check nvidia-smi and CUDA_VISIBLE_DEVICES on the worker's machine.",
)


class Cuda:
    """Device 0 through the driver library, in the primary context that TensorRT uses too."""

    def __init__(self):
        """Open the library and the device.

        Raises:
            Refused: driver or device is missing.
        """
        name = os.environ.get("HALFWISE_CUDA_LIBRARY") or "libcuda.so.1"
        try:
            self._library = ctypes.CDLL(name)
        except OSError as error:
            raise Refused(
                "gpu-missing",
                f"There is no NVIDIA driver here: {error}.",
                "Run the worker where the GPU is; a container needs --gpus all.",
            )
        self.call("cuInit", 0, missing=True)
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count), missing=True)
        if not count.value:
            raise Refused("gpu-missing", *_NO_GPU)
        self.device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device, missing=True)
        self.call("cuCtxSetCurrent", context)
        self.stream = self._handle("cuStreamCreate", 0)

    def call(self, name, *arguments, **how):
        """Call a function of the driver.

        Raises:
            Refused: it returns an error.
        """
        status = getattr(self._library, name)(*arguments)
        if not status:
            return
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(status, ctypes.byref(text))
        shown = (text.value or b"error %d" % status).decode()
        if shown == "CUDA_ERROR_NO_DEVICE":
            raise Refused("gpu-missing", *_NO_GPU)
        code = "memory" if shown == "CUDA_ERROR_OUT_OF_MEMORY" else "cuda"
        code = "gpu-missing" if how.get("missing") else code
        raise Refused(code, f"{name} returned {shown}.")

    def _handle(self, name, *arguments):
        handle = ctypes.c_void_p()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle

    def facts(self):
        """Return name, compute capability and memory of the device."""
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, 256, self.device)
        major, minor = (self._attribute(number) for number in (75, 76))
        free, total = self.memory()
        return {
            "name": name.value.decode(errors="replace"),
            "compute_capability": f"{major}.{minor}",
            "memory": total,
            "free": free,
        }

    def _attribute(self, number):
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        return value.value

    def memory(self):
        """Return free and total bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def is_lost(self):
        """Return whether a kernel's fault destroyed the context, so that all later calls fail."""
        return bool(self._library.cuCtxSynchronize())

    def synchronize(self):
        """Wait for all work."""
        self.call("cuStreamSynchronize", self.stream)

    def event(self):
        """Return an event that records time."""
        return self._handle("cuEventCreate", 0)

    def record(self, event):
        """Record the event once all work so far is done."""
        self.call("cuEventRecord", event, self.stream)

    def milliseconds(self, start, end):
        """Return the time between two completed events."""
        elapsed = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(elapsed), start, end)
        return elapsed.value


class Buffer:
    """Device memory, with host memory of the same size."""

    def __init__(self, cuda, size):
        """Allocate `size` bytes of each; at least one, since TensorRT accepts no null address."""
        self.cuda, self.size = cuda, size
        self.host, self.device = (ctypes.c_ubyte * size)(), ctypes.c_uint64()
        cuda.call("cuMemAlloc_v2", ctypes.byref(self.device), ctypes.c_size_t(max(1, size)))

    def to_device(self):
        """Copy, in the stream's order."""
        if self.size:
            size = ctypes.c_size_t(self.size)
            self.cuda.call("cuMemcpyHtoDAsync_v2", self.device, self.host, size, self.cuda.stream)

    def to_host(self):
        """Copy, in the stream's order."""
        if self.size:
            size = ctypes.c_size_t(self.size)
            self.cuda.call("cuMemcpyDtoHAsync_v2", self.host, self.device, size, self.cuda.stream)

    def free(self):
        """Free the memory of the device."""
        self.cuda.call("cuMemFree_v2", self.device)


def driver_version():
    """Return the version of the driver, or None."""
    with contextlib.suppress(Exception):
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        text = ctypes.create_string_buffer(96)
        if nvml.nvmlInit_v2() == 0 and nvml.nvmlSystemGetDriverVersion(text, 96) == 0:
            return text.value.decode()
    return None


# --------------------------------------------------------------------------------------- service


def product_of(version):
    """Return the product of a version as text: those of TensorRT for RTX are below 2."""
    return "TensorRT for RTX" if str(version).startswith("1.") else "TensorRT"


def titled(version):
    """Return a version as text with its product."""
    return f"{product_of(version)} {version}"


def api_of(version):
    """Return the version of TensorRT that has a version's API: itself, if not for RTX."""
    known = (api for first, api in RTX if first <= version < (2, 0))
    return next(known, version)


def version_of(trt):
    """Return major and minor version of TensorRT with the module's API."""
    numbers = trt.__version__.split(".")
    return api_of((int(numbers[0]), int(numbers[1])))


def typing_regimes(trt):
    """Return this version's typing regimes, its default first."""
    strong = version_of(trt) >= (9, 0)
    weak = getattr(trt.BuilderFlag, "FP16", None) is not None
    regimes = [name for name, there in (("weak", weak), ("strong", strong)) if there]
    return regimes[::-1] if version_of(trt) >= (10, 0) else regimes


class Service:
    """The child's side: one method per operation, each returns `(result, payload)`."""

    def __init__(self, requests, answers, at_work):
        """Take the file descriptors from and to halfwise, and memory for a request's number."""
        self._requests, self._answers, self._at_work = requests, answers, at_work
        self._lock = threading.Lock()
        self._id = self._timeout = None
        self._trt = self._cuda = self._logger = self._loaded = None
        self.complaints = collections.deque(maxlen=20)
        self.store = Store()

    def serve(self):
        """Answer requests until they end."""
        self.store.remove_unused()
        with open(self._requests, "rb") as stream:
            frame = read_frame(stream)
            while frame is not None:
                self._handle(*frame)
                frame = read_frame(stream)

    def _handle(self, request, payload):
        self._id, self._timeout = request["id"], request.get("timeout")
        NUMBER.pack_into(self._at_work, 0, self._id)
        self._start_clock()
        self.complaints.clear()
        try:
            operation = getattr(self, "op_{}".format(request["op"]))
            result, data = operation(request, payload)
        except Refused as refused:
            self._refuse(refused.answer)
        except MemoryError:
            self._refuse({"code": "memory", "message": "The worker's host is out of memory."})
        except Exception as error:
            traceback.print_exc()
            self._refuse({"code": "internal", "message": f"{type(error).__name__}: {error}"})
        else:
            self._end("result", data, **result)

    def _refuse(self, answer):
        """Send an `error`; this process ends if the context is lost."""
        lost = self._cuda is not None and self._cuda.is_lost()
        self._end("error", **dict({"hint": ""}, **answer))
        if lost:
            os._exit(AFRESH)

    def _start_clock(self):
        """Have the system end this process once the request has taken its timeout from now on."""
        signal.setitimer(signal.ITIMER_REAL, self._timeout or 0)

    def started(self):
        """Say that the work itself begins, and with it the timeout."""
        self._start_clock()
        self.tell("started")

    def _end(self, kind, payload=b"", **keys):
        """Send the last answer to a request."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        NUMBER.pack_into(self._at_work, 0, ANSWERING)
        self.tell(kind, payload, **keys)
        NUMBER.pack_into(self._at_work, 0, 0)

    def tell(self, kind, payload=b"", **keys):
        """Send an answer."""
        with self._lock:
            _write_all(self._answers, pack(dict(keys, id=self._id, kind=kind), payload))

    # Environment.

    def trt(self):
        """Return the module `tensorrt`, else `tensorrt_rtx`, and create its logger.

        Raises:
            Refused: it cannot be imported, or its version is unknown.
        """
        if self._trt is not None:
            return self._trt
        tensorrt = self._imported()
        if not OLDEST <= version_of(tensorrt) < FIRST_UNKNOWN:
            raise Refused(
                "tensorrt-version",
                f"{titled(tensorrt.__version__)} is not supported; TensorRT 8.5 to 11.4 and "
                "TensorRT for RTX from 1.4 on are.",
                "Give a Python with another version: --trt-command PATH.",
            )
        self._logger = _logger(tensorrt, self)
        tensorrt.init_libnvinfer_plugins(self._logger, "")
        self._trt = tensorrt
        return tensorrt

    def _imported(self):
        names = ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings")
        there = (n for n in names if n in sys.modules or importlib.util.find_spec(n))
        name = next(there, "tensorrt")
        try:
            return importlib.import_module(name)
        except Exception as error:
            raise Refused(
                "tensorrt-missing",
                f"Python {platform.python_version()} at {sys.executable} cannot import {name}: "
                f"{error}",
                "Name the Python that can: --trt-command PATH.",
            )

    def cuda(self):
        """Return the device."""
        if self._cuda is None:
            self._cuda = Cuda()
        return self._cuda

    def op_hello(self, request, payload):
        """Report what is available; missing parts are reported too, never an error."""
        facts = {
            "protocol": PROTOCOL,
            "python": platform.python_version(),
            "executable": sys.executable,
            "host": platform.node(),
            "cache": self.store.root,
            "driver": driver_version(),
            "tf32_override": os.environ.get("NVIDIA_TF32_OVERRIDE"),
            "tensorrt": None,
            "typing": [],
            "gpus": [],
        }
        try:
            trt = self.trt()
            facts["tensorrt"] = trt.__version__
            facts["typing"] = typing_regimes(trt)
        except Refused as refused:
            facts["import_error"] = refused.answer
        try:
            facts["gpus"] = [self.cuda().facts()]
        except Refused as refused:
            facts["cuda_error"] = refused.answer
        return facts, b""

    # Files.

    def op_have(self, request, payload):
        """Report which of `hashes` are missing."""
        return {"missing": [h for h in request["hashes"] if not self.store.has(h)]}, b""

    def op_put(self, request, payload):
        """Receive a chunk of a file."""
        self.store.put(request["sha256"], request["offset"], request["last"], payload)
        return {}, b""

    def op_get(self, request, payload):
        """Return a chunk of a file."""
        path = self.store.there(request["sha256"])
        with open(path, "rb") as file:
            file.seek(request["offset"])
            return {"total": os.path.getsize(path)}, file.read(request["length"])

    def op_forget(self, request, payload):
        """Remove a file."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.store.path(request["sha256"]))
        return {}, b""

    # Engines.

    def op_build(self, request, payload):
        """Build an engine; return its file, the timing cache's, and the network's layers."""
        trt, cuda = self.trt(), self.cuda()
        self._loaded = None
        gpu = cuda.facts()
        with self.store.folder(request["model"]["files"]) as folder:
            self.started()
            model = os.path.join(folder, request["model"]["main"])
            return Build(self, trt, self._logger, request, gpu).run(model), b""

    def op_describe(self, request, payload):
        """Return the engine's inputs, outputs and profiles."""
        trt, engine = self.trt(), self._engine(request["engine"])
        described = {
            "io": [_io(trt, engine, i) for i in range(engine.num_io_tensors)],
            "profiles": engine.num_optimization_profiles,
            "layers": engine.num_layers,
            "device_bytes": _context_bytes(engine),
        }
        return described, b""

    def op_run(self, request, payload):
        """Run the engine once."""
        with self._bound(request, payload) as run:
            self.started()
            run.copy_in()
            run.execute()
            arrays = run.results()
        data = b"".join([array.pop("data") for array in arrays])
        return {"outputs": arrays}, data

    def op_time(self, request, payload):
        """Time the engine with CUDA events, without transfers."""
        with self._bound(request, payload) as run:
            self.started()
            times = run.time(
                request.get("seconds", 2.0),
                request.get("iterations", 50),
                request.get("warmup", 0.3),
            )
        return times, b""

    def op_inspect(self, request, payload):
        """Return the inspector's output with these shapes bound."""
        trt = self.trt()
        with self._bound(request, payload) as run:
            self.started()
            run.copy_in()
            run.execute()
            inspector = run.engine.create_engine_inspector()
            inspector.execution_context = run.context
            text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
        return {}, text.encode("utf-8", "surrogateescape")

    def _engine(self, sha256):
        """Return the deserialised engine; the latest one is kept."""
        if self._loaded is not None and self._loaded[0] == sha256:
            return self._loaded[1]
        self._loaded = None
        trt, cuda = self.trt(), self.cuda()
        data = self.store.read(sha256)
        free = cuda.memory()[0]
        runtime = trt.Runtime(self._logger)
        engine = runtime.deserialize_cuda_engine(data)
        if engine is None:
            raise Refused(
                "engine",
                f"{titled(trt.__version__)} cannot read the engine.",
                "An engine runs only on the TensorRT version and kind of GPU that built it.",
                log=list(self.complaints),
            )
        self._loaded = (sha256, engine, free, runtime)
        return engine

    @contextlib.contextmanager
    def _bound(self, request, payload):
        """Yield the engine with its inputs bound; free their memory at the end."""
        engine, profile = self._engine(request["engine"]), request.get("profile", 0)
        inputs, free = request["inputs"], self._loaded[2]
        run = Bound(self, self.trt(), self.cuda(), engine, profile, free, inputs, payload)
        try:
            yield run
        finally:
            run.free()


AT_LAYER = "Computing costs for "
"""Marks the line before a builder starts on a layer: always sent, since the builder may crash."""


def _logger(trt, service):
    """Return a logger that passes every line to the service."""
    ranks = ("verbose", "info", "warning", "error", "internal_error")
    numbers = {getattr(trt.ILogger, name.upper()): name for name in ranks}

    class Logger(trt.ILogger):
        def __init__(self):
            trt.ILogger.__init__(self)

        def log(self, severity, text):
            name = numbers.get(severity, "info")
            if ranks.index(name) >= ranks.index("error"):
                service.complaints.append(text)
            if name != "verbose" or AT_LAYER in text:
                service.tell("log", severity=name, text=text)

    return Logger()


def _context_bytes(engine):
    for name in ("device_memory_size_v2", "device_memory_size"):
        size = getattr(engine, name, None)
        if size is not None:
            return int(size)
    return 0


_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "UINT8": "uint8",
    "FP8": "float8_e4m3fn",
}
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "int32": 4, "int64": 8}
ITEM_BYTES.update({"bool": 1, "uint8": 1, "float8_e4m3fn": 1})


def _dtype(dtype):
    """Return NumPy's name of a `tensorrt.DataType`, or ml_dtypes' if NumPy has none."""
    return _DTYPES.get(dtype.name, dtype.name.lower())


def _bytes_of(shape, dtype):
    if dtype not in ITEM_BYTES:
        raise Refused("dtype", f"Tensors of type {dtype} cannot be exchanged.")
    count = 1
    for size in shape:
        count *= size
    return count * ITEM_BYTES[dtype]


def _io(trt, engine, index):
    name = engine.get_tensor_name(index)
    is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
    shape_tensor = bool(engine.is_shape_inference_io(name))
    profiles = []
    if is_input:
        for profile in range(engine.num_optimization_profiles):
            if shape_tensor and hasattr(engine, "get_tensor_profile_values"):
                limits = engine.get_tensor_profile_values(profile, name)
            elif shape_tensor and hasattr(engine, "get_profile_shape_input"):
                limits = engine.get_profile_shape_input(profile, name)
            else:
                limits = engine.get_tensor_profile_shape(name, profile)
            limits = [[int(x) for x in limit] for limit in limits or ()]
            profiles.append(dict(zip(("min", "opt", "max"), limits)))
    return {
        "name": name,
        "mode": "input" if is_input else "output",
        "dtype": _dtype(engine.get_tensor_dtype(name)),
        "shape": [int(x) for x in engine.get_tensor_shape(name)],
        "location": "host"
        if engine.get_tensor_location(name) == trt.TensorLocation.HOST
        else "device",
        "shape_tensor": shape_tensor,
        "linear": engine.get_tensor_format(name) == trt.TensorFormat.LINEAR,
        "profiles": profiles,
    }


# ------------------------------------------------------------------------------------- execution


class Bound:
    """An execution context with its inputs and outputs bound."""

    def __init__(self, service, trt, cuda, engine, profile, free_before, inputs, payload):
        """Bind `inputs` (dicts of name, dtype and shape) to the elements in `payload`."""
        self.service, self.trt, self.cuda, self.engine = service, trt, cuda, engine
        self.free_before = free_before
        self.buffers, self.allocators = {}, {}
        self.io = {
            io["name"]: io for io in (_io(trt, engine, i) for i in range(engine.num_io_tensors))
        }
        for name, io in self.io.items():
            if not io["linear"]:
                text = "{} {} of the engine has no linear layout."
                raise Refused("dtype", text.format(io["mode"].capitalize(), name))
        self.context = engine.create_execution_context()
        if self.context is None:
            raise Refused(
                "memory",
                "TensorRT cannot create an execution context.",
                "Usually the GPU has too little memory.",
                log=list(service.complaints),
            )
        # TensorRT 8.6 does not check the index, and crashes.
        has_profile = profile < engine.num_optimization_profiles
        if profile and not (
            has_profile and self.context.set_optimization_profile_async(profile, cuda.stream.value)
        ):
            raise Refused("profile", f"The engine has no optimization profile {profile}.")
        try:
            self._bind_inputs(profile, inputs, payload)
            self._bind_outputs()
        except BaseException:
            self.free()
            raise

    def _bind_inputs(self, profile, inputs, payload):
        offset = 0
        for array in inputs:
            name, shape, io = array["name"], tuple(array["shape"]), self.io[array["name"]]
            if not self.context.set_input_shape(name, shape):
                self._refuse_shape(name, shape, io, profile)
            size = _bytes_of(shape, io["dtype"])
            buffer = self.buffers[name] = Buffer(self.cuda, size)
            ctypes.memmove(buffer.host, payload[offset : offset + size], size)
            offset += size
            self._set_address(name, io, buffer)

    def _refuse_shape(self, name, shape, io, profile):
        limits = io["profiles"][profile] if profile < len(io["profiles"]) else {}
        raise Refused(
            "shape",
            "Input {} has shape {}, which the engine does not accept: {}.".format(
                name,
                list(shape),
                "it takes {} to {}".format(limits.get("min"), limits.get("max"))
                if limits
                else "it takes {}".format(io["shape"]),
            ),
            "Build with a profile that covers it: --engine minShapes=…, optShapes, maxShapes.",
        )

    def _set_address(self, name, io, buffer):
        on_host = io["location"] == "host"
        address = ctypes.addressof(buffer.host) if on_host else buffer.device.value
        if not self.context.set_tensor_address(name, address):
            raise Refused("internal", f"TensorRT accepts no address for {name}.")

    def _bind_outputs(self):
        missing = self.context.infer_shapes()
        if missing:
            raise Refused(
                "shape", "Shapes or values of {} are not known.".format(", ".join(missing))
            )
        for name, io in self.io.items():
            if io["mode"] == "input":
                continue
            shape = tuple(int(x) for x in self.context.get_tensor_shape(name))
            if -1 in shape:
                allocator = self.allocators[name] = _allocator(self.trt, self.cuda)
                if not self.context.set_output_allocator(name, allocator):
                    raise Refused("internal", f"TensorRT accepts no allocator for {name}.")
                continue
            buffer = self.buffers[name] = Buffer(self.cuda, _bytes_of(shape, io["dtype"]))
            self._set_address(name, io, buffer)

    def copy_in(self):
        """Copy the inputs to the device."""
        for name, io in self.io.items():
            if io["mode"] == "input" and io["location"] == "device":
                self.buffers[name].to_device()

    def copy_out(self):
        """Copy the outputs to the host."""
        for name, io in self.io.items():
            if io["mode"] == "output" and name in self.buffers and io["location"] == "device":
                self.buffers[name].to_host()

    def enqueue(self):
        """Enqueue one run."""
        if not self.context.execute_async_v3(self.cuda.stream.value):
            raise Refused("run", "The engine failed to run.", log=list(self.service.complaints))

    def execute(self):
        """Run once and wait."""
        self.enqueue()
        self.cuda.synchronize()

    def results(self):
        """Return the outputs, as dicts of name, dtype, shape and data."""
        self.copy_out()
        self.cuda.synchronize()
        outputs = []
        for name, io in self.io.items():
            if io["mode"] == "input":
                continue
            if name in self.allocators:
                shape, data = self.allocators[name].result(io["dtype"])
            else:
                shape = tuple(int(x) for x in self.context.get_tensor_shape(name))
                data = bytes(self.buffers[name].host)
            entry = {"name": name, "dtype": io["dtype"], "shape": list(shape), "data": data}
            outputs.append(entry)
        return outputs

    def time(self, seconds, iterations, warmup):
        """Time many runs; return milliseconds."""
        self.copy_in()
        started, runs = time.monotonic(), 0
        while runs < 5 or time.monotonic() - started < warmup:
            self.execute()
            runs += 1
        each = max(1e-6, (time.monotonic() - started) / runs)
        count = int(min(10000, max(iterations, seconds / each)))
        times = self._times(count)
        used = self.free_before - self.cuda.memory()[0]
        return {
            "iterations": count,
            "median_ms": _quantile(times, 0.5),
            "p99_ms": _quantile(times, 0.99),
            "device_bytes": max(used, _context_bytes(self.engine)),
        }

    def _times(self, count):
        """Return milliseconds of each of `count` runs, without transfers."""
        cuda = self.cuda
        marks = [(cuda.event(), cuda.event()) for _ in range(count)]
        cuda.synchronize()
        for start, end in marks:
            cuda.record(start)
            self.enqueue()
            cuda.record(end)
        cuda.synchronize()
        times = [cuda.milliseconds(start, end) for start, end in marks]
        for pair in marks:
            for event in pair:
                cuda.call("cuEventDestroy_v2", event)
        return times

    def free(self):
        """Free all memory."""
        self.context = None
        self.cuda.synchronize()
        for buffer in self.buffers.values():
            buffer.free()
        for allocator in self.allocators.values():
            allocator.free()


def _quantile(values, fraction):
    """Return the smallest value that a `fraction` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -int(-fraction * len(ordered) // 1) - 1))]


def _allocator(trt, cuda):
    """Return an allocator for an output whose shape is known only after the run."""

    class Allocator(trt.IOutputAllocator):
        def __init__(self):
            trt.IOutputAllocator.__init__(self)
            self.buffer, self.shape = None, None

        def reallocate_output(self, tensor_name, memory, size, alignment):
            if self.buffer is None or self.buffer.size < size:
                self.free()
                self.buffer = Buffer(cuda, size)
            return self.buffer.device.value

        def reallocate_output_async(self, tensor_name, memory, size, alignment, stream):
            return self.reallocate_output(tensor_name, memory, size, alignment)

        def notify_shape(self, tensor_name, shape):
            self.shape = tuple(int(x) for x in shape)

        def result(self, dtype):
            size = _bytes_of(self.shape, dtype)
            if self.buffer is None or not size:
                return self.shape, b""
            self.buffer.to_host()
            cuda.synchronize()
            return self.shape, bytes(self.buffer.host[:size])

        def free(self):
            if self.buffer is not None:
                self.buffer.free()
            self.buffer = None

    return Allocator()


# ----------------------------------------------------------------------------------------- build


NEVER_CONSTRAINED = frozenset(
    (
        *("ASSERTION", "CAST", "CONDITION", "CONDITIONAL_INPUT", "CONDITIONAL_OUTPUT", "CONSTANT"),
        *("DEQUANTIZE", "DYNAMIC_QUANTIZE", "ITERATOR", "LOOP_OUTPUT", "NON_ZERO", "PLUGIN"),
        *("PLUGIN_V2", "PLUGIN_V3", "QUANTIZE", "RECURRENCE", "SHAPE", "TRIP_LIMIT"),
    )
)
"""Kinds of layers that take no precision: `castLayer.cpp` asserts, the others compute nothing.
Recipes copy this, `layer_nodes` and `pin_to_fp32` from here."""


class Build:
    """One build, step by step."""

    def __init__(self, service, trt, logger, request, gpu):
        self.service, self.trt, self.logger, self.request = service, trt, logger, request
        self.config = request["config"]
        self.strong = self.config["typing"] == "strong"
        self.gpu = gpu

    def run(self, model):
        """Build the engine of the ONNX file `model`; return the answer."""
        for path in self.config["plugins"]:
            self._load_plugin(path)
        builder = self.trt.Builder(self.logger)
        network = builder.create_network(self._network_flags())
        self._parse(network, model)
        layers = [network.get_layer(i) for i in range(network.num_layers)]
        nodes = [layer_nodes(layer) for layer in layers]
        constrained, unconstrained = self._constrain(layers, nodes)
        options = builder.create_builder_config()
        self._configure(options)
        if not self.strong:
            for name in quantised_flags(layers):
                self._set_flag(options, name)
        self._add_profiles(builder, network, options)
        cache = self._set_timing_cache(options)
        started = time.monotonic()
        plan = builder.build_serialized_network(network, options)
        seconds = time.monotonic() - started
        if plan is None:
            raise Refused("build", "TensorRT built no engine.", log=list(self.service.complaints))
        if self.request.get("cached"):
            replace(self._timing_path(), bytes(cache.serialize()))
        return {
            "engine": self.service.store.write(bytes(plan)),
            "seconds": seconds,
            "layers": [
                [layer.name, layer.type.name, names, index in constrained]
                for index, (layer, names) in enumerate(zip(layers, nodes))
            ],
            "unconstrained": unconstrained,
        }

    def _load_plugin(self, path):
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise Refused(
                "plugin",
                f"The plugin library {path} cannot be loaded: {error}.",
                "Its path must be one on the worker's machine.",
            )

    def _network_flags(self):
        flags, group = 0, self.trt.NetworkDefinitionCreationFlag
        wanted = ("EXPLICIT_BATCH", "STRONGLY_TYPED" if self.strong else "")
        for name in wanted:
            member = getattr(group, name, None) if name else None
            if member is not None:
                flags |= 1 << int(member)
        return flags

    def _parse(self, network, model):
        parser = self.trt.OnnxParser(network, self.logger)
        group = getattr(self.trt, "OnnxParserFlag", None)
        if group is not None and getattr(group, "NATIVE_INSTANCENORM", None) is not None:
            parser.set_flag(group.NATIVE_INSTANCENORM)
        if parser.parse_from_file(model):
            return
        errors = [_parser_error(parser.get_error(i)) for i in range(parser.num_errors)]
        last = self.service.complaints[-1] if self.service.complaints else "no reason given"
        text = f"{titled(self.trt.__version__)} cannot parse the model: {last}"
        raise Refused("parse", text, errors=errors)

    def _constrain(self, layers, nodes):
        """Set the precision of `keep`'s layers; return their indices, and nodes without any."""
        if self.strong:
            return set(), {}
        keep = set(self.config["keep"])
        constrained, why = set(), dict.fromkeys(keep, "no layer of the network names it")
        for index, (layer, names) in enumerate(zip(layers, nodes)):
            pinned = keep.intersection(names)
            if not pinned:
                continue
            if pin_to_fp32(self.trt, layer):
                constrained.add(index)
                for name in pinned:
                    why.pop(name, None)
            else:
                for name in pinned & why.keys():
                    why[name] = f"its layer ({layer.type.name}) takes no precision"
        return constrained, why

    def _configure(self, options):
        trt, config = self.trt, self.config
        flags = trt.BuilderFlag
        if config["tf32"]:
            options.set_flag(flags.TF32)
        else:
            options.clear_flag(flags.TF32)
        if not self.strong and config["low"] is not None:
            self._set_flag(options, config["low"].upper())
        if not self.strong and config["keep"]:
            self._set_flag(options, "OBEY_PRECISION_CONSTRAINTS")
        options.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        if config["workspace_bytes"] is not None:
            options.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, config["workspace_bytes"])
        if config["optimization_level"] is not None:
            if not hasattr(options, "builder_optimization_level"):
                raise Refused(
                    "option",
                    f"{titled(trt.__version__)} has no builder optimization level.",
                    "Leave --engine optimization-level out.",
                )
            options.builder_optimization_level = config["optimization_level"]
        if config["tactic_sources"] is not None:
            options.set_tactic_sources(self._tactic_sources(config["tactic_sources"]))

    def _set_flag(self, options, name):
        hint = "Use strong typing if this version has it: --typing strong."
        options.set_flag(self._member("BuilderFlag", name, "typing", "builder flag", hint))

    def _tactic_sources(self, names):
        sources = 0
        for name in names:
            hint = "Check --engine tactic-sources."
            member = self._member("TacticSource", name, "option", "tactic source", hint)
            sources |= 1 << int(member)
        return sources

    def _member(self, group, name, code, what, hint):
        """Return a member of an enumeration by name, since numbers differ between versions."""
        member = getattr(getattr(self.trt, group), name, None)
        if member is None:
            raise Refused(code, f"{titled(self.trt.__version__)} has no {what} {name}.", hint)
        return member

    def _add_profiles(self, builder, network, options):
        inputs = [network.get_input(i) for i in range(network.num_inputs)]
        dynamic = [i.name for i in inputs if -1 in tuple(i.shape) or i.is_shape_tensor]
        if dynamic and not self.config["profiles"]:
            raise Refused(
                "profile",
                "Inputs {} have dynamic shapes, but no profile gives their range.".format(
                    ", ".join(dynamic)
                ),
                "Give --engine minShapes=…, optShapes and maxShapes, or inputs to take them from.",
            )
        for entry in self.config["profiles"] if dynamic else ():
            profile = builder.create_optimization_profile()
            for tensor in inputs:
                if tensor.name not in dynamic:
                    continue
                group = "values" if tensor.is_shape_tensor else "shapes"
                limits = entry[group].get(tensor.name)
                if limits is None:
                    raise Refused("profile", f"The profile has no {group} of input {tensor.name}.")
                self._set_limits(profile, tensor, limits)
            if options.add_optimization_profile(profile) < 0:
                raise Refused(
                    "profile",
                    "TensorRT rejects the optimization profile.",
                    log=list(self.service.complaints),
                )

    def _set_limits(self, profile, tensor, limits):
        shapes = [tuple(limits[key]) for key in ("min", "opt", "max")]
        set_limits = profile.set_shape_input if tensor.is_shape_tensor else profile.set_shape
        try:
            set_limits(tensor.name, *shapes)
        except (ValueError, RuntimeError, TypeError) as error:
            raise Refused("profile", f"The profile of input {tensor.name} is rejected: {error}")

    def _timing_path(self):
        words = (self.trt.__version__, self.gpu["name"], self.gpu["compute_capability"])
        name = "".join(c if c.isalnum() or c in ".-" else "_" for c in "-".join(words))
        return os.path.join(self.service.store.root, "timing", name + ".cache")

    def _set_timing_cache(self, options):
        """Return the timing cache: that of this GPU and version if asked for, else a new one.

        8.6.0 rejected even its own caches if Myelin had compiled something (H200).
        """
        data = b""
        with contextlib.suppress(OSError):
            if self.request.get("cached"):
                with open(self._timing_path(), "rb") as file:
                    data = file.read()
        cache = options.create_timing_cache(data)
        if cache is None or not options.set_timing_cache(cache, False):
            cache = options.create_timing_cache(b"")
            options.set_timing_cache(cache, False)
        return cache


def layer_nodes(layer):
    """Return the names of the ONNX nodes that a network layer was parsed from, by its metadata.

    `[ONNX Layer: NAME]`, perhaps several, perhaps with ` | Local Function: …` behind the name.
    Before 8.6 layers have no metadata, and their own name begins with the node's.
    """
    metadata = getattr(layer, "metadata", None)
    if metadata is None:
        return [layer.name]
    names = []
    for part in metadata.split("[ONNX Layer: ")[1:]:
        name, local, _ = part.partition(" | Local Function: ")
        end = -1 if local else name.rfind("]")
        names.append(name if end < 0 else name[:end])
    return names


def quantised_flags(layers):
    """Return the builder flags that the Quantize and Dequantize layers of a network need.

    Weak typing rejects the layers without them (`int8 is not configured in the builder`).
    """
    kinds = ("QUANTIZE", "DEQUANTIZE")
    quantising = [layer for layer in layers if layer.type.name in kinds]
    dequantised = [
        layer.get_input(0).dtype.name for layer in quantising if layer.type.name == kinds[1]
    ]
    others = sorted({"FP8", "INT4"}.intersection(dequantised))
    return others or ["INT8"] if quantising else []


def pin_to_fp32(trt, layer):
    """Set a layer and its float outputs to FP32; return whether it takes a precision."""
    outputs = [layer.get_output(i) for i in range(layer.num_outputs)]
    floats = [
        i
        for i, tensor in enumerate(outputs)
        if tensor is not None
        and tensor.dtype in (trt.float32, trt.float16)
        and not tensor.is_shape_tensor
    ]
    # 8.5 parses a Cast into an Identity that changes the type.
    casts = layer.type.name == "IDENTITY" and layer.get_input(0).dtype != outputs[0].dtype
    if layer.type.name in NEVER_CONSTRAINED or casts or not floats:
        return False
    layer.precision = trt.float32
    for index in floats:
        layer.set_output_type(index, trt.float32)
    return True


def _parser_error(error):
    def text(name):
        member = getattr(error, name, None)
        return str(member()) if callable(member) else ""

    names = {"node": text("node_name"), "op": text("node_operator"), "text": text("desc")}
    return dict(names, index=error.node())


def main():
    """Serve over standard input and output, which nothing else can use from now on."""
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    supervise(requests, answers)


if __name__ == "__main__":
    main()
