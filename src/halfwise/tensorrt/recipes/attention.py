"""The note of a strongly typed recipe on attention that is partly FP32."""

import shlex
from collections.abc import Iterator

from halfwise.graph.model import Network, node_name
from halfwise.graph.patterns.activations import attentions
from halfwise.graph.patterns.reading import moves
from halfwise.records import NodeName, Run
from halfwise.tensorrt.versions import has
from halfwise.wording import count, verb

_MOST = 24
"""Largest number of options that a note lists; beyond that it gives only their number."""


def note_on_attention(run: Run, network: Network, kept: frozenset[NodeName], version: str) -> str:
    """Return a note if a plan keeps cores of attention only in part, else an empty string.

    There is none if a strongly typed engine was judged: its verdict covers this.

    Args:
        run: A run of `fix`.
        network: The mixed model.
        kept: Its FP32 nodes.
        version: TensorRT's version.
    """
    if run.engines is not None and run.engines.typing == "strong":
        return ""
    found = list(_split(network, kept))
    if not found:
        return ""
    missing = sorted(frozenset().union(*found))
    options = " ".join(f"--keep {shlex.quote(name)}" for name in missing)
    if len(missing) > _MOST:
        options = f"--keep for {len(missing)} more nodes"
    upcast = has("FP32 sums in fused attention", version)
    sums = " (or, by its notes, is FP32 with queries, keys and values cast up)" if upcast else ""
    return (
        f"{count(len(found), 'attention core')} {verb(len(found), 'is', 'are')} partly FP32, "
        f"but TensorRT {version} fuses a core only if all of it has one type{sums}: halfwise "
        f"fix with --start-from and {options} keeps whole cores in FP32, and judges the result."
    )


def _split(network: Network, kept: frozenset[NodeName]) -> Iterator[frozenset[NodeName]]:
    """Yield the low nodes of every core that also has FP32 nodes."""
    for nodes in dict.fromkeys(attentions(network)):
        core = frozenset(node_name(n) for n in nodes if not moves(n))
        if core & kept and core - kept:
            yield core - kept
