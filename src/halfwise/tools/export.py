"""`export`: write the recipe of a run folder."""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import onnx
from msgspec import Struct

from halfwise.errors import CaseError, RecordMismatch, UsageError
from halfwise.fixing.repair.making import repaired
from halfwise.fixing.rewrite import save_checked
from halfwise.graph.conversion import Stored, upcast
from halfwise.graph.loading import load_network
from halfwise.graph.model import Network
from halfwise.options.loading import load_model
from halfwise.progress import Silent, Watcher
from halfwise.records import NodeName, Recipe, Run, Typing
from halfwise.scratch import scratch
from halfwise.store import (
    BUILT_FILE,
    FP32_FILE,
    MODEL_FILE,
    folder_of,
    on_one_device,
    read_run,
    refuse_existing,
    users_model,
)
from halfwise.tensorrt.constrain import readable
from halfwise.tensorrt.link import model_files
from halfwise.tensorrt.ports import profiles_from_options
from halfwise.tensorrt.recipe import (
    KINDS,
    Source,
    choose,
    is_built_apart,
    kept_nodes,
    make_recipe,
    nothing_low,
    planned_repairs,
)
from halfwise.wording import count

Kind = Literal["trtexec", "python", "cpp", "json"]
_ENGINE = "rebuilt.engine"
"""Differs from the judged engine's name: a recipe may be written into the run folder."""
_SUFFIXES = {"trtexec": ".sh", "python": ".py", "json": ".json"}
"""Suffix of a single-file recipe; any other path is a folder."""


class Exported(Struct, frozen=True):
    """A recipe and its texts.

    Attributes:
        recipe: The record.
        texts: Text by file name.
        written: Files written, including the ONNX file; empty if none.
    """

    recipe: Recipe
    texts: Mapping[str, str]
    written: tuple[Path, ...] = ()


def export(
    run: str | Path,
    kind: Kind,
    *,
    out: str | Path | None = None,
    trt_version: str | None = None,
    typing: Typing | None = None,
    model: str | Path | None = None,
    min_shapes: Sequence[str] = (),
    opt_shapes: Sequence[str] = (),
    max_shapes: Sequence[str] = (),
    trt_worker: str | None = None,
    watcher: Watcher | None = None,
) -> Exported:
    """Return the recipe that builds a run's engine without halfwise, and write it to `out`.

    Args:
        run: Folder of a run of `fix`, or its `run.json`.
        kind: What builds it.
        out: A folder, or a file that ends in the recipe's `.sh`, `.py` or `.json`. Nothing is
            overwritten. None writes nothing.
        trt_version: TensorRT that will build; None: that of the run's engines, or 10.16.
        typing: "weak" or "strong"; None: weak up to 8.x, strong from 9 on.
        model: The user's model, if it has moved since the run. Weak typing needs it, unless the run
            folder holds the FP32 model.
        min_shapes: Smallest shapes of the inputs in trtexec's notation, one text per optimization
            profile; empty: the profiles of the run's engines. The next two are alike.
        opt_shapes: Usual shapes.
        max_shapes: Largest shapes.
        trt_worker: The device whose engine to export; required if the run has several.
        watcher: Receives how much of the model is read.

    Raises:
        UsageError: no such kind, version, typing or device, or `out` cannot be written to.
        CaseError: the run has no such recipe; the message says why.
        RecordMismatch: the run folder is damaged, or the model differs.
    """
    if kind not in KINDS:
        raise UsageError(f"Unknown recipe {kind!r}.", f"Give one of {', '.join(KINDS)}.")
    place, watcher = _Place(None if out is None else Path(out), kind), watcher or Silent()
    if place.folder is not None:  # before all else
        refuse_existing(place.file or place.folder / "recipe", "file")
    record = on_one_device(read_run(Path(run)), trt_worker)
    folder = folder_of(run)
    version, regime = choose(record, trt_version, typing)
    shapes = (min_shapes, opt_shapes, max_shapes)
    with scratch() as partial:
        source = _source(folder, record, (version, regime), place, model, partial, watcher)
        profiles = profiles_from_options(source.network, None, *shapes)
        recipe = make_recipe(
            record,
            source,
            folder=str(folder),
            engine=_ENGINE,
            version=version,
            typing=regime,
            profiles=profiles,
        )
        texts = KINDS[kind](recipe)
        written = place.write(texts, partial) if out is not None else ()
    return Exported(recipe, texts, written)


class _Place:
    """The destination of a recipe's files."""

    def __init__(self, out: Path | None, kind: Kind) -> None:
        named = out is not None and out.suffix == _SUFFIXES.get(kind) and not out.is_dir()
        self.file = out if named else None
        self.folder = out.parent if named and out is not None else out

    def tell(self, path: Path) -> str:
        """Return `path` as recipes here write it: relative to the folder, or absolute."""
        path = path.resolve()
        if self.folder is None or not path.is_relative_to(self.folder.resolve()):
            return str(path)
        shown = str(path.relative_to(self.folder.resolve()))
        # Must not look like an option.
        return f"./{shown}" if shown.startswith("-") else shown

    def write(self, texts: Mapping[str, str], partial: Path) -> tuple[Path, ...]:
        """Write the texts beside the models in `partial`, and move all here; return the paths."""
        assert self.folder is not None
        for name, text in texts.items():
            path = partial / (name if self.file is None else self.file.name)
            path.write_text(text, encoding="utf-8", errors="surrogateescape")
            if path.suffix == ".sh":
                path.chmod(path.stat().st_mode | 0o111)
        made = {path: self.folder / path.name for path in sorted(partial.iterdir())}
        for path in made.values():
            refuse_existing(path, "file")
        self.folder.mkdir(parents=True, exist_ok=True)
        for path, here in made.items():
            shutil.move(path, here)
        return tuple(made.values())


def _source(
    folder: Path,
    run: Run,
    builder: tuple[str, Typing],
    place: _Place,
    model: str | Path | None,
    partial: Path,
    watcher: Watcher,
) -> Source:
    """Return the ONNX file to build from; a file still to be written is in `partial`."""
    version, typing = builder
    built = BUILT_FILE if is_built_apart(run) else FP32_FILE
    inside = folder / (MODEL_FILE if typing == "strong" and not nothing_low(run) else built)
    if typing == "strong" and not inside.is_file():
        raise RecordMismatch(
            f"{folder} lacks {inside.name}, from which its engine is built.",
            "Restore the file, or make the run again.",
        )
    if inside.is_file():
        return Source(
            load_network(inside, watcher.step), place.tell(inside), model_files(inside).hashes
        )
    if run.plan is not None and run.plan.int8 and not nothing_low(run):
        return _with_pairs(folder / MODEL_FILE, version, place, partial, watcher)
    path, network, stored = fp32_model(run, model, watcher)
    repairs = planned_repairs(run)
    network = repaired(network, repairs)
    if repairs:
        trouble = f"{path} lacks the run's repairs, which its plan needs."
    elif stored.formats:
        trouble = f"{path} stores {' and '.join(stored.formats)}; constraints need FP32."
    elif unnamed := _unnamed(path, kept := kept_nodes(run)):
        trouble = (
            f"{unnamed} of {count(len(kept), 'kept node')} have no name of their own in {path}, so "
            "no constraint can reach them."
        )
    else:
        return Source(network, place.tell(path), model_files(path).hashes)
    if place.folder is None:
        raise CaseError(
            trouble,
            f"Give a folder with -o: {built} is written there, with names for all nodes.",
        )
    named = partial / built
    save_checked(network.model, named)
    return Source(network, built, model_files(named).hashes)


def _with_pairs(
    mixed: Path, version: str, place: _Place, partial: Path, watcher: Watcher
) -> Source:
    """Return the file to constrain for a plan with INT8: its model in FP32, except for INT8."""
    if not mixed.is_file():
        raise RecordMismatch(
            f"{mixed.parent} lacks {mixed.name}, which holds the plan's INT8.",
            "Restore the file, or make the run again.",
        )
    if place.folder is None:
        raise CaseError(
            f"{mixed} has Casts, which constraints replace.",
            f"Give a folder with -o: {BUILT_FILE} is written there, without them.",
        )
    network, named = readable(upcast(load_model(mixed, watcher))[0], version), partial / BUILT_FILE
    save_checked(network.model, named)
    return Source(network, BUILT_FILE, model_files(named).hashes)


def fp32_model(
    run: Run, model: str | Path | None, watcher: Watcher | None = None
) -> tuple[Path, Network, Stored]:
    """Return a run's source model: its path, the network in FP32, and what its file stores."""
    path = users_model(run) if model is None else Path(model)
    if not path.is_file():
        raise CaseError(
            f"This needs the FP32 model, but {path} is missing.",
            "Give the model that the run was made from: --model FILE.",
        )
    network, stored = upcast(load_model(path, watcher or Silent()))
    if network.sha256 != run.provenance.model_sha256:
        raise RecordMismatch(
            f"{path} is not the model that the run was made from: its hash differs.",
            "Give that model: --model FILE.",
        )
    return path, network, stored


def _unnamed(path: Path, kept: frozenset[NodeName]) -> int:
    """Return how many kept nodes have a name that is missing or ambiguous in the file."""
    graph = onnx.load_model(path, load_external_data=False).graph
    names = Counter(node.name for node in graph.node)
    return sum(names[name] != 1 for name in kept)
