"""What is needed to repeat the run."""

from collections.abc import Iterator

from halfwise.page.section import Section
from halfwise.page.stored import Stored
from halfwise.records import Run
from halfwise.wording import clean


def provenance(stored: Stored) -> Section:
    """Return the section of versions, hashes, options and inputs."""
    told = [(name, list(map(clean, filter(None, values)))) for name, values in facts(stored.run)]
    shown = [(name, values) for name, values in told if values]
    return Section("provenance", "Provenance", template="provenance.html", facts=shown)


def facts(run: Run) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield names and their facts."""
    found = run.provenance
    yield "command", (found.command or run.kind,)
    yield "date", (found.date,)
    yield "model", (found.model,)
    yield "candidate", (found.candidate,)
    yield "SHA-256 of the model", (found.model_sha256,)
    yield "folder", (found.folder,)
    yield "inputs", (found.data or "",)
    yield "SHA-256 of the inputs", (found.inputs_sha256,)
    yield "read as", found.inputs
    yield "options", tuple(f"{name} = {value}" for name, value in found.options.items())
    yield "seed", (str(found.seed),)
    yield "device", (f"{found.device}, {found.platform}",)
    yield "versions", (" · ".join(f"{name} {number}" for name, number in found.versions.items()),)
