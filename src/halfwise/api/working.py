"""A worker that is up, for as long as a command needs it."""

from collections.abc import Iterator
from contextlib import contextmanager

from halfwise.api.workers import WorkerSpec
from halfwise.backends.tensorrt.client import Worker
from halfwise.progress import Watcher


@contextmanager
def usable(spec: WorkerSpec, watcher: Watcher) -> Iterator[Worker]:
    """Give the worker, up and able to build.

    Raises:
        BackendMissing: it does not come up, or lacks TensorRT or a GPU.
    """
    watcher.stage("worker")
    with Worker(spec.name, spec.command) as worker:
        worker.demand_usable()
        info = worker.info
        watcher.note(f"TensorRT {info.tensorrt} on {info.gpu} ({' '.join(spec.command)})")
        yield worker
