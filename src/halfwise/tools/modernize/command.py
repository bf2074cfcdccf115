"""Rewrite old spellings of a model to the operators that its target has."""

from pathlib import Path
from typing import Unpack

from halfwise.case import Settings
from halfwise.errors import BackendMissing, CaseError
from halfwise.fixing.rewrite import save_checked
from halfwise.graph.model import Network
from halfwise.graph.modern.candidates import FIRST_OPSET
from halfwise.options.limits import bounded
from halfwise.options.loading import RANDOM, load_case
from halfwise.options.options import Inputs, Model, Options, understand
from halfwise.progress import Silent, Watcher
from halfwise.records import Modernized, version_of
from halfwise.store import new_file, refuse_existing_file
from halfwise.tensorrt.versions import (
    DEFAULT_VERSION,
    OLDEST_PARSER,
    has_operator,
    highest_opset,
    known_version,
)
from halfwise.tensorrt.worker.client import Worker
from halfwise.tensorrt.workers import resolve
from halfwise.tools.doctor import ANSWER_SECONDS
from halfwise.tools.modernize.judged import modernize as run

MAP_SUFFIX = ".map.json"


@bounded
def modernize(
    model: Model,
    out: str | Path,
    inputs: Inputs = RANDOM,
    *,
    trt_version: str | None = None,
    transpose: bool = False,
    watcher: Watcher | None = None,
    **options: Unpack[Options],
) -> Modernized:
    """Write the model with a higher opset, and norms and GELUs as one node each; prove it the same.

    Beside `out`, `out.map.json` gets the record, with the new node names by old one.

    Args:
        model: FP32 model.
        out: ONNX file to write; must not exist.
        inputs: Samples, as for `fix`; random numbers where none are given.
        trt_version: TensorRT that shall read it. Without it, that of the worker that is configured
            or named in `options`; else 10.0.
        transpose: Put Transposes around norms over other axes than the last.
        watcher: Is told about progress.
        options: See `Options`.

    Raises:
        HalfwiseError: the model, the inputs or an option cannot be used.
    """
    watcher = watcher or Silent()
    path = Path(out)
    refuse_existing_file(path, MAP_SUFFIX)
    request = understand(inputs, {k: v for k, v in options.items() if not k.startswith("trt_")})
    if trt_version is None:
        version, target = _version_of_worker(options, watcher)
    else:
        version = known_version(trt_version, oldest=OLDEST_PARSER)
        target = f"TensorRT {trt_version}"
    watcher.stage("load")
    case = load_case(model, request.data, request.criterion, split=False)
    if case.stored.formats:
        raise CaseError(
            f"The model stores {' and '.join(case.stored.formats)}, and weights that were rounded "
            "once stay so.",
            "Modernize the FP32 model, and lower that with `halfwise fix`.",
        )
    for note in case.notes:
        watcher.note(note)
    network, record = run(
        case,
        request.settings,
        watcher,
        opset=highest_opset(version),
        available=[op for op in FIRST_OPSET if has_operator(op, version)],
        target=target,
        transposes=transpose,
    )
    _write(network, record, path, request.settings)
    return record


def _version_of_worker(options: Options, watcher: Watcher) -> tuple[tuple[int, int], str]:
    """Return the version of TensorRT to write for, and how it was found out."""
    spec = resolve(
        trt_python=options.get("trt_python"),
        trt_command=options.get("trt_command"),
        trt_worker=options.get("trt_worker"),
    )[0]
    if spec.source != "default":
        watcher.stage("worker")
        spec.announce()
        try:
            with Worker(spec.name, spec.command, limit=ANSWER_SECONDS) as worker:
                found = worker.info.tensorrt
        except BackendMissing as error:
            raise BackendMissing(error.message, "Name the version: --trt-version 10.0.") from error
        if found:
            return version_of(found), f"TensorRT {found}, that of worker {spec.name}"
    return version_of(DEFAULT_VERSION), (
        f"TensorRT {DEFAULT_VERSION} and later; --trt-version names another"
    )


def _write(network: Network, record: Modernized, path: Path, settings: Settings) -> None:
    with new_file(path, MAP_SUFFIX) as new:
        save_checked(network.model, new, runtime=settings.runtime)
        text = record.model_dump_json(indent=1) + "\n"
        new.with_name(f"{new.name}{MAP_SUFFIX}").write_text(text, encoding="utf-8")
