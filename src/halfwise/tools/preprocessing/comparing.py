"""Compare one input of two pipelines: cheap, exact checks first, resampling last."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.records import InputComparison, InputDifference
from halfwise.records.diagnosis import difference
from halfwise.tools.preprocessing.geometry import (
    Fitted,
    Frames,
    frame_differences,
    frames,
    resampling_differences,
    sides,
)
from halfwise.tools.preprocessing.images import (
    Layout,
    Turn,
    boxes,
    layout_difference,
    layout_of,
    match,
    thumbnail,
    turn_difference,
)
from halfwise.tools.preprocessing.plain import compare_plain, concluded, type_difference
from halfwise.tools.preprocessing.program import Program, Residual, measure, transformation
from halfwise.tools.preprocessing.registration import Alignment, align, pairs
from halfwise.tools.preprocessing.tone import EXPLAINED, Tone, tone_of, traces
from halfwise.wording import dimensions, number

Array = NDArray[np.float64]
Arrays = Sequence[NDArray[Any]]

MOST_FITTED = 6
"""Samples for fitting geometry and values; order and residual use all."""
_TURNED = 0.2
"""Gain in correlation that justifies turning one raw image differently from the others."""
_SAME_VALUE = 0.6
"""Difference in padding values, in levels of 255, that rounding explains."""
FRACTIONS = ("kernel", "antialias", "resampling", "half-pixel")
UNDONE = (*FRACTIONS, "fit", "size")
_LOSSY = (*UNDONE, "clipping", "normalisation", "values")
"""Differences that leave a residual no code removes."""
_UNEXPLAINED = 2.0
"""Levels of 255 beyond rounding: two roundings in another order differ by one."""


@dataclass
class Pair:
    """What is known about one input so far.

    Attributes:
        a: Samples of A.
        b: Samples of B, equally many.
        layouts: Image layout in A's and B's samples.
        turn: Turn that makes A look like B.
        order: The sample of A for each of B.
        chosen: The samples of B used for fitting.
        found: What differs.
        program: What turns A into B.
    """

    a: Arrays
    b: Arrays
    layouts: tuple[Layout, Layout]
    turn: Turn = field(default_factory=Turn)
    order: tuple[int, ...] = ()
    chosen: tuple[int, ...] = ()
    found: list[InputDifference] = field(default_factory=list)
    program: Program = field(default_factory=Program)


def compare_arrays(
    a: Arrays,
    b: Arrays,
    *,
    name: str = "input",
    name_b: str | None = None,
    raws: Arrays | None = None,
) -> InputComparison:
    """Return how two pipelines differ on one input.

    Args:
        a: Samples of A: finite numbers of any shape, which may vary between samples.
        b: Samples of B, equally many.
        name: Name of the input in A.
        name_b: Name in B, if it differs.
        raws: The raw image behind each sample of A, [h, w], [h, w, c] or [c, h, w] with values from
            0 to 255. With them, kernels are fitted; without, only roughly guessed.
    """
    layouts = layout_of(a[0]), layout_of(b[0])
    if layouts[0] is None or layouts[1] is None:
        return compare_plain(a, b, (name, name_b or name))
    pair = Pair(a, b, (layouts[0], layouts[1]))
    _store(pair)
    _match(pair)
    left = [pair.turn(layouts[0].image(a[pair.order[i]])) for i in pair.chosen]
    right = [layouts[1].image(b[i]) for i in pair.chosen]
    framed = frames(left, right)
    contents = (
        [box.cut(x) for box, x in zip(framed.a, left, strict=True)],
        [box.cut(y) for box, y in zip(framed.b, right, strict=True)],
    )
    alignment = align(*contents)
    tone = tone_of(*pairs(alignment, *contents), exact=alignment.exact)
    geometry, fitted = resampling_differences(
        alignment,
        contents,
        tone,
        _raw_images(pair, raws),
        padded=bool(framed.value_a or framed.value_b),
    )
    framing = frame_differences(framed, left[0].shape[1:], right[0].shape[1:])
    pair.found += [*_sizes(left[0], right[0]), *framing, *geometry]
    if alignment.kind == "unlike":
        # For different images, nothing else holds.
        pair.found = [d for d in pair.found if d.kind not in ("order", "flip")]
    else:
        pair.found += [*tone.differences, *_frame_value(framed, tone)]
        if not alignment.exact:
            pair.found += traces(tone, *contents, _overshoots(fitted))
    _write(pair, framed, alignment, tone, right[0].shape[1:])
    ordered = [pair.a[i] for i in pair.order]
    residual = measure(ordered, b, transformation(pair.program.text), _inside(pair, alignment))
    if residual.largest <= EXPLAINED * max(tone.level) and _without_guesses(pair):
        _write(pair, framed, alignment, tone, right[0].shape[1:])
    framed_well = bool(framed.value_a) and alignment.exact and tone.explained
    if not framed_well:
        pair.found += _unexplained(pair, residual, tone)
    return _conclude(pair, (name, name_b or name), tone, fitted, residual)


def _without_guesses(pair: Pair) -> bool:
    """Drop guessed kernel differences and the program; return whether there were any."""
    sure = [d for d in pair.found if d.kind != "resampling"]
    guessed = len(sure) < len(pair.found)
    if guessed:
        pair.found, pair.program = sure, Program()
    return guessed


def _sizes(a: Array, b: Array) -> list[InputDifference]:
    one, other = dimensions(a.shape[1:]), dimensions(b.shape[1:])
    if one == other:
        return []
    return [difference("size", f"B is {other}, A is {one}.", one, other)]


def _store(pair: Pair) -> None:
    a, b = pair.layouts
    first_a, first_b = pair.a[0], pair.b[0]
    if a.lead != b.lead:
        pair.found.append(
            difference(
                "batch-axis",
                f"B has {b.lead or 'no'} leading {'axis' if b.lead == 1 else 'axes'} of length 1, "
                f"A has {a.lead or 'none'}.",
                str(first_a.shape),
                str(first_b.shape),
            )
        )
    if (a.order, a.reshaped) != (b.order, b.reshaped) and "HW" not in (a.order, b.order):
        pair.found.append(layout_difference(a, b))
    pair.found += type_difference(first_a, first_b)


def _match(pair: Pair) -> None:
    """Find the order of samples and any flips."""
    thumbs_a, thumbs_b = (
        [_thumbnail(layout, sample, who, i) for i, sample in enumerate(side)]
        for layout, side, who in zip(pair.layouts, (pair.a, pair.b), "AB", strict=True)
    )
    pair.turn, pair.order = match(thumbs_a, thumbs_b)
    if pair.order != tuple(range(len(pair.b))):
        moved = sum(i != j for i, j in enumerate(pair.order))
        pair.found.append(
            difference(
                "order",
                f"B has the samples in another order: {moved} of {len(pair.b)} are out of place.",
                "0, 1, 2, …",
                ", ".join(map(str, pair.order[:12])) + (", …" if len(pair.order) > 12 else ""),
                "the correlation of thumbnails",
            )
        )
    if pair.turn != Turn():
        pair.found.append(turn_difference(pair.turn))
    spread = np.linspace(0, len(pair.b) - 1, min(len(pair.b), MOST_FITTED))
    pair.chosen = tuple(dict.fromkeys(int(i) for i in spread))


def _thumbnail(layout: Layout, sample: NDArray[Any], who: str, index: int) -> Array:
    found = layout_of(sample)
    if found is None or (found.order, found.lead) != (layout.order, layout.lead):
        raise CaseError(
            f"Sample {index} of {who} has the shape {sample.shape}; expected {layout}, like the "
            "first sample.",
            "Give all samples in one layout.",
        )
    image = layout.image(sample)
    return thumbnail(boxes([image])[0].cut(image))


def _raw_images(pair: Pair, raws: Arrays | None) -> list[Array] | None:
    """Return the raw images of the fitted samples, turned like B."""
    if raws is None:
        return None
    found = []
    for i in pair.chosen:
        raw = raws[pair.order[i]]
        layout = layout_of(raw)
        if layout is None:
            return None
        image, made = layout.image(raw), pair.layouts[1].image(pair.b[i])
        found.append((image, thumbnail(image), thumbnail(boxes([made])[0].cut(made))))
    common, _ = match([small for _, small, _ in found], [target for _, _, target in found])
    turned = []
    for image, small, target in found:
        # EXIF may turn both A and B against the raw image, image by image; but a round retina looks
        # the same in every direction.
        own, _ = match([small], [target])
        gain = float(((own(small) - common(small)) * target).sum())
        turned.append((own if gain > _TURNED else common)(image))
    return turned


def _overshoots(fitted: Fitted) -> tuple[bool, bool] | None:
    a, b = fitted
    if a is None or b is None:
        return None
    wide = [each.method.kernel in ("bicubic", "lanczos") for each in (a, b)]
    return wide[0], wide[1]


def _frame_value(framed: Frames, tone: Tone) -> list[InputDifference]:
    value = framed.value_b
    if not (framed.value_a and value and _gap(tone, framed.value_a, value)):
        return []
    mapped = tone.fit(_plane(framed.value_a)).ravel()
    pixels = [", ".join(number(v, 4) for v in row) for row in (mapped, value)]
    return [
        difference(
            "padding-value",
            f"The padding value is {pixels[1]} in B, {pixels[0]} in A.",
            pixels[0],
            pixels[1],
            "in B's unit, by channel",
        )
    ]


def _write(
    pair: Pair, framed: Frames, alignment: Alignment, tone: Tone, shape: Sequence[int]
) -> None:
    program = pair.program
    if pair.order != tuple(range(len(pair.b))):
        program.order(pair.order)
    program.read(pair.layouts[0])
    if pair.turn != Turn():
        program.turn(pair.turn)
    values = framed.value_a, framed.value_b
    moved = [box.place for box in framed.a] != [box.place for box in framed.b]
    reframed = moved or bool(all(values) and _gap(tone, *values))
    if reframed and framed.value_a:
        program.unframe(framed.value_a, 1e-5 * float(np.ptp(pair.a[0])))
    common = alignment.common
    if alignment.kind == "crop" and not framed.value_b:
        program.shift(*alignment.shift, shape)
    elif alignment.kind == "size" and not framed.value_b:
        program.stretch(shape)
    elif alignment.kind not in ("same", "unlike") and common is not None and not framed.value_b:
        program.place(common, shape)
    if kinds := [d.kind for d in pair.found if d.kind in UNDONE]:
        program.add(f"{', '.join(kinds)}: detail lost in resizing cannot be recovered")
    tone.write(program)
    if reframed and framed.value_b:
        program.frame(shape, framed.value_b, sides(framed.b, shape))
    program.write(pair.layouts[1], pair.b[0])


def _gap(tone: Tone, a: Sequence[float], b: Sequence[float]) -> bool:
    """Return whether two padding values differ by more than rounding."""
    gap = np.abs(tone.fit(_plane(a)) - _plane(b)).max()
    return bool(gap > _SAME_VALUE * max(tone.level))


def _plane(value: Sequence[float]) -> Array:
    return np.array(value)[:, None, None]


def _inside(pair: Pair, alignment: Alignment) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Return a function that crops B to what A shows too, if their crops differ."""
    down, along = alignment.shift if alignment.kind == "crop" else (0, 0)
    if not (down or along):
        return lambda sample: sample

    def cut(sample: NDArray[Any]) -> NDArray[Any]:
        image = pair.layouts[1].image(sample)
        rows, columns = image.shape[1:]
        return image[
            :, max(0, -down) : rows - max(0, down), max(0, -along) : columns - max(0, along)
        ]

    return cut


def _unexplained(pair: Pair, residual: Residual, tone: Tone) -> list[InputDifference]:
    level = float(max(tone.level))
    lossy = any(d.kind in _LOSSY for d in pair.found)
    if lossy or residual.largest <= _UNEXPLAINED * level:
        return []
    sentence = "Values differ, and no known step explains how."
    left = f"{number(residual.largest / level)} of 255 levels at most"
    return [difference("values", sentence, "", "", left)]


def _conclude(
    pair: Pair, names: tuple[str, str], tone: Tone, fitted: Fitted, residual: Residual
) -> InputComparison:
    return concluded(
        pair.a,
        pair.b,
        names,
        pair.found,
        residual,
        pair.program.text if pair.found else "",
        level=float(max(tone.level)),
        slack=1.01,
        order=pair.order,
        pipelines=fitted,
    )
