"""Eight architectures with random weights, exported by Optimum, fused by ONNX Runtime's optimiser.

python fused.py     writes NAME.onnx and NAME/00.npz … for each file of a network
"""

from pathlib import Path

import numpy as np
import onnx
import torch
from onnxruntime.transformers.optimizer import optimize_model
from optimum.exporters.onnx import onnx_export_from_model
from transformers import (
    BertConfig,
    BertModel,
    CLIPConfig,
    CLIPModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

SAMPLES, WIDTH, HEADS, WORDS, FRAMES = 12, 64, 4, 80, 64
LAYERS = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 2 * WIDTH,
}
TEXT = {"vocab_size": WORDS, "max_position_embeddings": 64}
IMAGE = {"image_size": 32, "patch_size": 8}
GPT2 = {"n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "n_positions": 64}
T5 = {"d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": 2 * WIDTH, "num_layers": 2}
SPEECH = {
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 2 * WIDTH,
    "decoder_ffn_dim": 2 * WIDTH,
    "max_source_positions": FRAMES // 2,
    "max_target_positions": 32,
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
WITH_CACHE = "text-generation-with-past"
NETWORKS = {
    "BERT": (BertModel, BertConfig(**TEXT, **LAYERS), "feature-extraction", "bert"),
    "GPT-2": (GPT2LMHeadModel, GPT2Config(vocab_size=WORDS, **GPT2), WITH_CACHE, "gpt2"),
    "Llama": (
        LlamaForCausalLM,
        LlamaConfig(**TEXT, num_key_value_heads=2, **LAYERS),
        WITH_CACHE,
        "gpt2",
    ),
    "T5": (
        T5ForConditionalGeneration,
        T5Config(vocab_size=WORDS, num_heads=HEADS, decoder_start_token_id=0, **T5),
        "text2text-generation",
        "t5",
    ),
    "ViT": (ViTForImageClassification, ViTConfig(**IMAGE, **LAYERS), "image-classification", "vit"),
    "CLIP": (
        CLIPModel,
        CLIPConfig(
            text_config={**TEXT, **LAYERS, "bos_token_id": 78, "eos_token_id": 79},
            vision_config={**IMAGE, **LAYERS},
            projection_dim=32,
        ),
        "zero-shot-image-classification",
        "clip",
    ),
    "Whisper": (
        WhisperForConditionalGeneration,
        WhisperConfig(
            vocab_size=WORDS,
            num_mel_bins=16,
            suppress_tokens=None,
            begin_suppress_tokens=None,
            **TOKENS,
            **SPEECH,
        ),
        "automatic-speech-recognition",
        "bart",
    ),
    "Phi": (
        PhiForCausalLM,
        PhiConfig(**TEXT, partial_rotary_factor=0.5, **LAYERS),
        WITH_CACHE,
        "gpt2",
    ),
}
"""Class, sizes, Optimum's task, and the optimiser's model type: it has none for Llama, and the one
for Phi takes only graphs of another exporter."""
PAST, NEW = 5, 8
SIZES = {
    "num_channels": 3,
    "height": 32,
    "width": 32,
    "sequence_length": NEW,
    "encoder_sequence_length": NEW,
    "decoder_sequence_length": NEW,
    "past_sequence_length": PAST,
    "past_sequence_length + sequence_length": PAST + NEW,
}
"""Of dynamic axes; 1 for others, which are batches."""


def write() -> None:
    """Write all files with their samples."""
    torch.manual_seed(0)
    for name, (network, config, task, kind) in NETWORKS.items():
        exported = Path("exported", name)
        frames = {"nb_max_frames": FRAMES} if name == "Whisper" else {}
        model = network(config).eval()
        onnx_export_from_model(model, exported, task=task, do_validation=False, opset=18, **frames)
        for file in sorted(exported.glob("*.onnx")):
            part = file.stem.removesuffix("model").rstrip("_")
            stem = f"{name} {part}".rstrip()
            fused = optimize_model(
                str(file), model_type=kind, num_heads=HEADS, hidden_size=WIDTH, opt_level=0
            )
            onnx.save(fused.model, f"{stem}.onnx")
            samples(fused.model, Path(stem))


def samples(model: onnx.ModelProto, folder: Path) -> None:
    """Write inputs made to the form of a model's."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for index in range(SAMPLES):
        np.savez(folder / f"{index:02}.npz", **{v.name: made(v, rng) for v in model.graph.input})


def made(info: onnx.ValueInfoProto, rng: np.random.Generator) -> np.ndarray:
    """Return an input: words and their places, masks without gaps, noise for all else."""
    tensor = info.type.tensor_type
    shape = [SIZES.get(d.dim_param, 1) if d.dim_param else d.dim_value for d in tensor.shape.dim]
    if "mask" in info.name:
        array = np.ones(shape)
    elif info.name == "position_ids":
        array = np.broadcast_to(np.arange(PAST, PAST + NEW), shape)
    elif info.name == "input_ids":
        array = rng.integers(3, WORDS, shape)
    elif tensor.elem_type == onnx.TensorProto.FLOAT:
        array = rng.standard_normal(shape)
    else:
        array = np.zeros(shape)
    return array.astype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))


if __name__ == "__main__":
    write()
