"""Options of a trtexec command that precision constraints depend on."""

from collections.abc import Iterator, Mapping

from halfwise.tensorrt.trtexec.complaint import Complaint, Version, text_of
from halfwise.tensorrt.trtexec.notation import CONSTRAINTS, OPTIONS, Given
from halfwise.tensorrt.versions import FIRST_STRONG, FIRST_WITHOUT_WEAK

_STRONG = "--stronglyTyped"
_LOW = ("--fp16", "--bf16", "--int8", "--fp8", "--int4", "--best")
_REMOVED = (*OPTIONS, CONSTRAINTS, *_LOW)
_MIGRATION = "https://docs.nvidia.com/deeplearning/tensorrt/latest/api/migration-guide.html"
_EFFECTIVE = ("obey", "prefer")


def check_command(given: Given, version: Version) -> Iterator[Complaint]:
    """Yield what is wrong with the command around its constraints."""
    if version >= FIRST_WITHOUT_WEAK:
        yield _removed(given, version)
        return
    for option in given.repeated:
        yield Complaint(
            "repeated-option",
            "error",
            f"{option} is given more than once: trtexec takes one of them, and ends with Unknown "
            "option for the other",
            "Give one, with commas between its items.",
        )
    for option in given.split:
        yield Complaint(
            "unreadable",
            "error",
            f"{option} has no value: trtexec reads it from the same word",
            f"Write {option}=name:type.",
        )
    for word in given.stray:
        yield Complaint(
            "unreadable",
            "error",
            f"trtexec takes the word {word!r} for an option of its own, and ends",
            "Leave no blank behind a comma.",
        )
    if given.value(_STRONG) is not None:
        yield from _strong(version)
    if given.whole:
        yield from _effect(given)


def _removed(given: Given, version: Version) -> Complaint:
    names = [word.partition("=")[0] for word in given.words]
    gone = ", ".join(dict.fromkeys(name for name in names if name in _REMOVED))
    return Complaint(
        "removed",
        "error",
        f"trtexec {text_of(version)} has no {gone}: from 11.0 on every network is strongly typed, "
        "and an unknown option ends it",
        "Write the types into the model (halfwise fix does), and build that without such options.",
        source=_MIGRATION,
    )


def _strong(version: Version) -> Iterator[Complaint]:
    if version < FIRST_STRONG:
        message = f"trtexec {text_of(version)} has no {_STRONG}; it came with 9.0"
    else:
        message = (
            f"{_STRONG} and constraints exclude one another: a layer of a strongly typed network "
            "takes no precision, and the FP16 flag ends the build"
        )
    yield Complaint("strong-typing", "error", message, f"Leave {_STRONG} out, or the constraints.")


def _effect(given: Given) -> Iterator[Complaint]:
    mode = given.value(CONSTRAINTS)
    if mode is None or mode == "none":
        yield Complaint(
            "no-effect",
            "error",
            f"with{'out' if mode is None else ''} {CONSTRAINTS}{'=none' if mode else ''} trtexec "
            "sets no constraint at all",
            f"Add {CONSTRAINTS}=obey.",
        )
    elif mode not in _EFFECTIVE:
        yield Complaint(
            "unreadable",
            "error",
            f"{CONSTRAINTS} is {mode!r}; trtexec knows obey, prefer and none",
            f"Write {CONSTRAINTS}=obey.",
        )
    low = [flag for flag in _LOW if given.value(flag) is not None]
    types = {t for key in given.keys for t in key.types}
    if not low and types <= {"fp32"}:
        yield Complaint(
            "nothing-lowered",
            "warning",
            "no option lets the builder use anything but FP32, so there is nothing to constrain",
            "Add --fp16, or leave the constraints out.",
        )
    for name in ("fp16", "bf16", "int8"):
        if name in types and f"--{name}" not in low and "--best" not in low:
            yield Complaint(
                "flag-missing",
                "error",
                f"a constraint asks for {name}, which the builder may not use without --{name}",
                f"Add --{name}.",
            )


def corrected_words(given: Given, values: Mapping[str, str], version: Version) -> list[str]:
    """Return the words of the command as they should be.

    Args:
        given: What was given.
        values: The corrected values of both options; "" for one that has none left.
        version: Version of trtexec.
    """
    strong_only = version >= FIRST_WITHOUT_WEAK
    dropped = _REMOVED if strong_only else (*OPTIONS, _STRONG, CONSTRAINTS)
    kept = [word for word in given.words if word not in given.stray]
    words = [word for word in kept if word.partition("=")[0] not in dropped]
    left = {option: value for option, value in values.items() if value}
    if strong_only:
        return words if given.whole else []
    if given.whole and left:
        flags = {word.partition("=")[0] for word in words}
        types = {t for key in given.keys for t in key.types}
        missing = [t for t in ("fp16", "bf16", "int8") if t in types and "--best" not in flags]
        words += [f"--{t}" for t in missing if f"--{t}" not in flags]
        mode = given.value(CONSTRAINTS)
        words.append(f"{CONSTRAINTS}={mode if mode in _EFFECTIVE else 'obey'}")
    return [*words, *(f"{option}={value}" for option, value in left.items())]
