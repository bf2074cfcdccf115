"""`export --as netron`: a run's model for viewers, with findings in the nodes' metadata."""

from collections.abc import Iterable
from pathlib import Path

import onnx_ir as ir

from halfwise.emulation.typed import TF32_MARK
from halfwise.fixing.engines.workbench import save
from halfwise.graph.loading import load_network
from halfwise.graph.model import Network, node_name
from halfwise.progress import Silent, Watcher
from halfwise.records import Observations, Run
from halfwise.reporting.nodes import NodeFacts, node_facts, type_words, words_on
from halfwise.store import (
    MODEL_FILE,
    file_named,
    folder_of,
    new_file,
    on_one_device,
    read_observations,
    read_run,
)
from halfwise.tools.export import fp32_model

PREFIX = "halfwise."
MOST_CHARACTERS = 1000
"""Length of an entry: Netron 8.8 shows no more."""


def annotate(
    run: str | Path,
    out: str | Path,
    *,
    model: str | Path | None = None,
    trt_worker: str | None = None,
    watcher: Watcher | None = None,
) -> Path:
    """Write a copy of a run's mixed model, or if it has none of its FP32 model, for viewers.

    Netron shows the metadata of the selected node: its types in this file ("halfwise.precision")
    and the text of `words_on`. Other entries stay unchanged.

    Args:
        run: Run folder, or its `run.json`.
        out: ONNX file to write, with large weights next to it.
        model: The FP32 model, to annotate instead, or if it has moved.
        trt_worker: The device whose engine to describe, if the run has several.
        watcher: Receives how much of the model is read.

    Raises:
        UsageError: `out` exists or cannot be written, or there is no such device.
        CaseError: the model is not there.
        RecordMismatch: the run folder is damaged, or the model differs.
    """
    record = on_one_device(read_run(Path(run)), trt_worker)
    folder = folder_of(run)
    mixed = folder / MODEL_FILE
    with new_file(file_named(out, ".onnx")) as partial:
        if model is None and mixed.is_file():
            network = load_network(mixed, (watcher or Silent()).step)
        else:
            network = fp32_model(record, model, watcher)[1]
        save(_annotated(network, record, read_observations(folder)), partial)
    return Path(out)


def _annotated(network: Network, run: Run, observations: Observations | None) -> ir.Model:
    facts, unknown = node_facts(run, observations), NodeFacts()
    samples = observations.samples if observations is not None else ()
    model = network.copy()
    for node in model.graph.all_nodes():
        told = {"precision": type_words(node.op_type, _types(node.inputs), _types(node.outputs))}
        told |= words_on(facts.get(node_name(node), unknown), samples)
        entries = node.metadata_props
        for key in [key for key in entries if key.startswith(PREFIX) and key != TF32_MARK]:
            del entries[key]
        entries.update({f"{PREFIX}{key}": _cut(text) for key, text in told.items() if text})
    return model


def _types(values: Iterable[ir.Value | None]) -> list[str]:
    return [v.dtype.name for v in values if v is not None and v.dtype is not None]


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"
