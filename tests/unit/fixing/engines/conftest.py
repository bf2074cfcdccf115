"""A run with engines on the stand-in for TensorRT, ready to prove what the emulation found."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from halfwise.case import Case, EngineSettings, Settings
from halfwise.fixing.engines.device import Device
from halfwise.fixing.engines.plan import EnginePlan
from halfwise.fixing.engines.run import EngineRun, Proof
from halfwise.fixing.engines.search import Bench
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.loop import fix
from halfwise.fixing.plan.plan import Nodes, Plan
from halfwise.fixing.space import Space
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from halfwise.tensorrt.client import Worker
from tests.models import Ill


class Listener(Silent):
    """Remembers notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)


@dataclass
class Stage:
    """What the parts of a run take."""

    case: Case
    settings: Settings
    worker: Worker
    device: Device
    listener: Listener

    @cached_property
    def run(self) -> EngineRun:
        """The run of this one device."""
        return EngineRun({"": self.device}, self.listener)

    def proven(self) -> Proof:
        """Return the result of the run, whose FP32 engine is right."""
        assert self.run.reference() is None
        return self.run.prove(self.fixed)

    @cached_property
    def fixed(self) -> Fixed:
        """What the emulation found."""
        return fix(self.case, self.settings, Silent())

    @property
    def space(self) -> Space:
        """The plans of the emulation."""
        return self.fixed.space

    def bench(self, *, builds: int = 1, budget: int = 6) -> Bench:
        """Judge plans on this one device."""
        heldout = self.fixed.heldout
        return Bench({"": self.device}, self.space, heldout, builds=builds, budget=budget)

    def plan(self, keep: Nodes, **terms: Any) -> EnginePlan:
        """Return the plan in FP16 that keeps nodes in FP32."""
        return EnginePlan(Plan(self.space.variant, keep), "fp16", **terms)


@pytest.fixture
def stage(
    unrepaired: None,  # noqa: ARG001
    fake_worker: Callable[..., list[str]],
    tmp_path: Path,
) -> Iterator[Callable[..., Stage]]:
    """Makes stages: `stage(ill, heldout=None, options={}, engine={}, version="8.6.1", **knobs)`.

    Nothing is repaired: what is kept in engines is looked at.
    """
    with ExitStack() as stack:

        def stage(
            ill: Ill,
            *,
            heldout: Any = None,
            options: dict[str, Any] | None = None,
            engine: dict[str, Any] | None = None,
            version: str = "8.6.1",
            **knobs: Any,
        ) -> Stage:
            unseen = {} if heldout is None else {"heldout": heldout}
            request = understand(dict(ill.inputs), {**(options or {}), **unseen})
            case = load_case(ill.proto, request.data, request.criterion)
            settings = EngineSettings(**{"builds": 1, "max_builds": 2, **(engine or {})})
            worker = stack.enter_context(Worker("fake", fake_worker(version, **knobs)))
            folder, listener = tmp_path / "files", Listener()
            folder.mkdir()
            how = case, request.settings, settings, worker, folder, listener
            device = Device(*how)
            return Stage(case, request.settings, worker, device, listener)

        yield stage
