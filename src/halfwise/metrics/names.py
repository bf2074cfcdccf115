"""Names that speak against a kind: an output's name outweighs what its values look like.

Landmarks, portfolio shares or quantiles can have values like class scores and boxes; their names
differ.
"""

import re
from collections.abc import Mapping

from halfwise.records import Kind

_WORD = re.compile(r"[A-Z]*[a-z]+|[A-Z]+")
_LONG = 5
"""Letters from which a word is searched for anywhere in a name; shorter ones must begin a word."""
_PLACES = (
    "landmark", "keypoint", "kpt", "kps", "joint", "pose", "coord", "offset", "delta", "displac",
    "mesh", "vertices", "rotat", "transl", "quat", "angle", "velocity", "traject", "normals",
    "gaze", "xyz",
)  # fmt: skip
_AMOUNTS = (
    "depth", "dispar", "quantile", "percentile", "regress", "forecast", "price", "distance",
    "height", "param", "coef", "alloc", "portfolio", "mixture", "mixing", "proportion", "fraction",
    "histogram", "variance", "uncert", "count", "length", "router", "expert",
)  # fmt: skip
_SPACES = ("embed", "feat", "latent", "hidden", "descriptor", "represent")
_DECISIONS = ("logit", "prob", "score", "class", "label", "token")
_AGAINST: Mapping[Kind, tuple[str, ...]] = {
    "boxes": (*(word for word in _PLACES if word != "coord"), *_AMOUNTS, *_SPACES),
    "class-scores": (
        *_PLACES, *_AMOUNTS, *_SPACES, "multilabel", "multi_label", "attribute", "tags",
    ),
    "tokens": (*_PLACES, *_AMOUNTS, *_SPACES, "num", "track", "cluster"),
    "embedding": (*_PLACES, *_AMOUNTS, *_DECISIONS, "box"),
    "mask": (
        *_AMOUNTS, "alpha", "matte", "pha", "disp", "heat", "anomal", "salien", "confid", "error",
        "visib", "ratio", "irm", "gain", "energy", "dist", "sdf", "spec", "stft", "mel", "audio",
        "speech",
    ),
    "segmentation": (*_AMOUNTS, *_SPACES, "disp", "cost", "heat", "flow", "instance"),
    "flow": (*_DECISIONS, *_SPACES, "mask", "seg", "change", "dispar", "depth", "uncert", "confid",
             "occl", "visib", "flower"),
    "heat-map": ("flux", "transfer"),
    "image": (
        *_PLACES, *_AMOUNTS, *_SPACES, *_DECISIONS, "alpha", "matte", "pha", "disp", "heat",
        "normal", "mask", "seg", "point", "position", "flow", "grad", "confid",
    ),
    "spectrum": (
        *_DECISIONS, *_SPACES, *_AMOUNTS, "mask", "species", "special", "specular", "specif",
        "melan", "confid",
    ),
    "waveform": (
        *_DECISIONS, *_SPACES, *_AMOUNTS, "mask", "wavelet", "wavelen", "spec", "mel", "pitch",
        "loss",
    ),
}  # fmt: skip
_FOR: Mapping[Kind, tuple[str, ...]] = {
    "class-scores": ("logit", "prob", "class", "cls", "softmax"),
    "tokens": ("logit", "prob", "class", "cls", "softmax", "token"),
    "embedding": ("embed", "latent", "represent"),
    "segmentation": ("seg", "semantic", "class"),
}
"""Words that outweigh those against: joint embeddings, probabilities of landmarks."""
_WEIGHTS = ("attention", "attn", "alignment", "weight", "gate")


def begins(name: str, *words: str) -> bool:
    """Return whether a word of a name begins with one of `words`.

    Words end at punctuation, a digit or a capital: "perspective" is not a spectrum.
    """
    own = [part.lower() for part in _WORD.findall(name)]
    return any(part.startswith(word) for part in own for word in words)


def is_against(kind: Kind, name: str) -> bool:
    """Return whether a name says that an output is not of a kind."""
    return _tells(name, _AGAINST[kind]) and not begins(name, *_FOR.get(kind, ()))


def is_weights(name: str) -> bool:
    """Return whether a name says that an output holds weights, which are of no kind."""
    return any(word in name.lower() for word in _WEIGHTS)


def _tells(name: str, words: tuple[str, ...]) -> bool:
    short = tuple(word for word in words if len(word) < _LONG)
    return any(w in name.lower() for w in words if len(w) >= _LONG) or begins(name, *short)
