"""A tiny BERT with random weights, exported by Optimum, its weights in a file beside the model.

python from_optimum.py           writes exported/ and texts.txt
python from_optimum.py mixed     loads mixed/ beside exported/ and prints the largest difference
"""

import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from optimum.exporters.onnx import main_export
from optimum.onnxruntime import ORTModelForSequenceClassification
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertTokenizerFast

WORDS = ("the", "a", "cat", "dog", "sees", "runs", "fast", "slow", "red", "blue", "house", "tree")
EXPORTED = Path("exported")


def write() -> None:
    """Write the exported folder, and a text for each sample."""
    torch.manual_seed(0)
    Path("vocab.txt").write_text("\n".join(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS)))
    BertTokenizerFast("vocab.txt").save_pretrained("bert")
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(vocab_size=5 + len(WORDS), intermediate_size=128, **sizes)
    BertForSequenceClassification(config).eval().save_pretrained("bert")
    main_export("bert", EXPORTED, task="text-classification")
    model = onnx.load(EXPORTED / "model.onnx")
    beside = {"location": "model.onnx_data", "size_threshold": 0}
    onnx.save(model, EXPORTED / "model.onnx", save_as_external_data=True, **beside)
    drawn = np.random.default_rng(0)
    texts = (" ".join(drawn.choice(WORDS, drawn.integers(4, 12))) for _ in range(32))
    Path("texts.txt").write_text("\n".join(texts))


def difference() -> float:
    """Return the largest difference of the logits of both folders."""
    tokens = AutoTokenizer.from_pretrained("mixed")(
        Path("texts.txt").read_text().splitlines(), padding=True, return_tensors="pt"
    )
    both = (ORTModelForSequenceClassification.from_pretrained(f) for f in ("exported", "mixed"))
    one, other = (model(**tokens).logits for model in both)
    return float((one - other).abs().max())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(difference())
    else:
        write()
