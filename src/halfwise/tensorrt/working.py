"""A worker that is up, for as long as a command needs it."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from halfwise.errors import UsageError
from halfwise.progress import Watcher
from halfwise.tensorrt.worker.client import HELLO_SECONDS, Worker
from halfwise.tensorrt.workers import WorkerSpec


@contextmanager
def usable(
    spec: WorkerSpec, watcher: Watcher, wait: float, *, exact: bool = False
) -> Iterator[Worker]:
    """Yield the worker, started and able to build; a note says how its environment affects TF32.

    Args:
        spec: The worker.
        watcher: Receives the TensorRT version and the GPU.
        wait: Seconds to wait for the GPU while another build uses it.
        exact: Whether its engines must be free of TF32.

    Raises:
        BackendMissing: it does not start, or lacks TensorRT or a GPU.
        UsageError: its environment may put TF32 into every engine, and `exact` is set.
    """
    watcher.stage("worker")
    watcher.left(HELLO_SECONDS)
    spec.announce()
    with Worker(spec.name, spec.command, wait=wait) as worker:
        worker.demand_usable()
        info = worker.info
        watcher.note(f"TensorRT {info.tensorrt} on {info.gpu} ({' '.join(spec.command)})")
        if info.tf32_remark:
            if exact and info.tf32_override != "0":
                *begin, interpreter = info.command
                without = shlex.join([*begin, "env", "-u", "NVIDIA_TF32_OVERRIDE", interpreter])
                raise UsageError(
                    info.tf32_remark,
                    f"Unset it there, or use --trt-command {shlex.quote(without)}.",
                )
            watcher.note(info.tf32_remark)
        yield worker
