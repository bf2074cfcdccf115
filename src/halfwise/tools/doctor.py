"""`doctor`: what a run depends on in this environment."""

import platform
import shlex
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from halfwise.declarations import default
from halfwise.emulation.ort import devices
from halfwise.emulation.runner import running
from halfwise.errors import BackendMissing
from halfwise.fixing.outcome import versions
from halfwise.progress import Silent, Watcher
from halfwise.records import WorkerInfo
from halfwise.targets.profiles import probe as measured
from halfwise.targets.profiles import profiles, store
from halfwise.targets.runners import runners_of
from halfwise.tensorrt.client import Worker
from halfwise.tensorrt.versions import CHECKED_VERSIONS, RUN_VERSIONS
from halfwise.tensorrt.worker import titled
from halfwise.tensorrt.workers import WorkerSpec, resolve
from halfwise.wording import size_of

ANSWER_SECONDS = 15.0
"""Time-out for a worker to start here, where someone waits: builds wait longer, since containers
may have to start."""
_ANSWERS = {True: "yes", False: "no", None: "unknown"}


def doctor(
    *,
    trt_command: str | None = None,
    trt_worker: str | None = None,
    probe: bool = False,
    watcher: Watcher | None = None,
) -> dict[str, str]:
    """Return what a run depends on here: versions, devices, targets, TensorRT workers.

    Args:
        trt_command: As in `Options`.
        trt_worker: As in `Options`.
        probe: Whether to measure what targets compute in FP16, and to store it for later runs.
        watcher: Receives how many workers are asked.

    Raises:
        UsageError: a worker option is invalid. An unusable worker is reported, with the reason.
    """
    workers = resolve(trt_command=trt_command, trt_worker=trt_worker)
    facts = {**versions(), "platform": platform.platform()}
    for device, available in devices().items():
        facts[f"device {device}"] = "available" if available else "not available"
    facts |= _targets(probe=probe)
    (watcher or Silent()).step(0, len(workers), "workers")
    return facts | worker_facts(workers)


def _targets(*, probe: bool) -> dict[str, str]:
    """Return facts about each target other than TensorRT; with `probe`, measure and store them."""
    facts, found = {}, {}
    for runner in runners_of(("webgpu", "ort-cuda", "rtx"), default("sm")):
        title = f"target {runner.name}"
        try:
            with running([runner]):
                facts[title] = f"version {runner.version}"
                if probe:
                    found[runner.name] = measured(runner)
        except BackendMissing as error:
            facts[title] = f"not available: {error.message}"
    if found:
        facts["profiles"] = f"measured, and stored in {store(found)}"
    for name, profile in (profiles() | found).items():
        facts[f"profile {name}"] = f"version {profile.version}, {profile.date}"
        for answer, title in _ANSWERS.items():
            found_so = [fact for fact, told in profile.facts.items() if told is answer]
            facts[f"profile {name}: {title}"] = "; ".join(found_so) or "nothing"
    return facts


def worker_facts(specs: Sequence[WorkerSpec]) -> dict[str, str]:
    """Return facts about each worker by name; workers are queried in parallel."""
    facts = {
        "tensorrt": f"ran with {', '.join(RUN_VERSIONS)}; only checked against the bindings of "
        f"{', '.join(map(titled, CHECKED_VERSIONS))}"
    }
    with ThreadPoolExecutor(len(specs)) as pool:
        for of_worker in pool.map(_facts, specs):
            facts |= of_worker
    return facts


def _facts(spec: WorkerSpec) -> dict[str, str]:
    title = f"worker {spec.name}"
    facts = {title: f"{shlex.join(spec.command)} ({spec.source})"}
    try:
        with Worker(spec.name, spec.command, limit=ANSWER_SECONDS) as worker:
            info = worker.info
    except BackendMissing as error:
        return facts | {f"{title} unusable": " ".join(filter(None, (error.message, error.hint)))}
    facts[f"{title} {info.product}"] = f"{info.tensorrt or 'not found'}, Python {info.python}"
    if info.gpu is not None:
        facts[f"{title} GPU"] = _gpu(info)
    if info.typing:
        facts[f"{title} typing"] = ", then ".join(info.typing)
    if info.trouble:
        facts[f"{title} unusable"] = info.trouble
    else:
        facts[f"{title} can"] = "build, run, time and inspect engines"
    if info.notes:
        facts[f"{title} notes"] = "; ".join(info.notes)
    return facts


def _gpu(info: WorkerInfo) -> str:
    memory = ""
    if info.free_bytes is not None and info.memory_bytes is not None:
        memory = f", {size_of(info.free_bytes)} of {size_of(info.memory_bytes)} free"
    driver = f", driver {info.driver}" if info.driver else ""
    return f"{info.gpu}, compute capability {info.compute_capability}{driver}{memory}"
