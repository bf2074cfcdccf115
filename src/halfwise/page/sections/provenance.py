"""What is needed to repeat the run."""

from collections.abc import Iterator

from halfwise.page.section import Section
from halfwise.page.stored import Stored
from halfwise.records import Run
from halfwise.wording import clean


def provenance(stored: Stored) -> Section:
    """Return the section of versions, hashes, options and inputs."""
    told = [(clean(name), clean(value)) for name, value in facts(stored.run) if value]
    return Section("provenance", "Provenance", template="provenance.html", facts=told)


def facts(run: Run) -> Iterator[tuple[str, str]]:
    """Yield names and values."""
    found = run.provenance
    yield "command", run.kind
    yield "date", found.date
    yield "model", found.model
    yield "folder", found.folder
    yield "model SHA-256", found.model_sha256
    yield "inputs", found.data or ""
    yield "inputs SHA-256", found.inputs_sha256
    for line in found.inputs:
        yield "read as", line
    for name, value in found.options.items():
        yield f"option {name}", value
    yield "seed", str(found.seed)
    yield "platform", found.platform
    yield "device", found.device
    for name, version in found.versions.items():
        yield name, version
