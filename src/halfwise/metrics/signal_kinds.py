"""Outputs that are sound: waveforms and spectra.

- Waveform: thousands of values around 0 along the last axis, and a name or an input of the same
  length. Not a series that drifts or has an offset, or a streaming state.
- Spectrum: a name, or an input of the same shape with 2^k + 1 bins. Not a cache that feeds the next
  call.
"""

import math

import numpy as np

from halfwise.metrics.evidence import Found, Seen
from halfwise.records import Evidence

_SOUNDS = ("audio", "wav", "speech", "enhanced", "signal", "voice")
"""Words in the names of waveforms."""
_SPECTRA = ("spec", "mel", "stft")
"""Words in the names of spectra."""
_FEWEST_NAMED, _FEWEST = 100, 4000
"""Fewest values of a waveform, with and without a telling name: 4000 last 0.25 s at 16 kHz."""
_MOST_CHANNELS = 8
_EARS = 2
"""Most channels of a sound input; points have three coordinates."""
_CENTRED = 0.1
"""Largest mean of a waveform, over its standard deviation."""
BINS = frozenset(2**k + 1 for k in range(6, 13))
"""Bins of a spectrum of 2^(k + 1) samples."""


def waveform(seen: Seen) -> Found | None:
    """Recognise signals [*, time]."""
    if seen.discrete or seen.is_state:
        return None
    rows = seen.rows()
    length = rows[0].shape[-1] if rows[0].ndim else 0
    channels = int(np.prod(rows[0].shape[1:-1]))
    if rows[0].ndim > 3 or channels > _MOST_CHANNELS or length < _FEWEST_NAMED:
        return None
    if not all(np.isfinite(array).all() for array in rows):
        return None
    values = np.concatenate([array.ravel() for array in rows])
    if abs(values.mean()) > _CENTRED * values.std() or values.min() >= 0:
        return None
    evidence: list[Evidence] = ["by-name"] if seen.called(*_SOUNDS) else []
    if length >= _FEWEST and any(_is_signal(s, length) for s in seen.inputs.values()):
        evidence.append("length-of-input")
    return Found("waveform", ("around-zero", *evidence), shown=True) if evidence else None


def _is_signal(shape: tuple[int, ...], length: int) -> bool:
    """Return whether an input has one or two channels of that length: not points in space."""
    return length in shape and math.prod(n for n in shape[1:] if n != length) <= _EARS


def spectrum(seen: Seen) -> Found | None:
    """Recognise spectra, in any order of axes."""
    if seen.discrete or seen.is_state or len(seen.shape) < 3:
        return None
    if not all(np.isfinite(array).all() for array in seen.arrays):
        return None
    evidence: list[Evidence] = ["by-name"] if seen.called(*_SPECTRA) else []
    if seen.shape in seen.inputs.values() and not BINS.isdisjoint(seen.shape[1:]):
        evidence.append("bins")
    return Found("spectrum", tuple(evidence), shown=True) if evidence else None
