"""Draws small networks of many kinds, each with a fault for FP16 but an unchanged FP32 function.

    python -m bench.gpu.networks --out DIR [NAME …]

Each makes `DIR/<name>/model.onnx`, `inputs.npz` and `heldout.npz`. Weights are random: these are
architectures, not trained models. All have at most 128 M multiply-accumulates, static shapes and
opset 14 to 17, which TensorRT 8.6 reads. Factors are powers of two, so that they round nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.gpu import later, sequences, vision
from bench.gpu.models import Made, main

NETWORKS: Mapping[str, Callable[[], Made]] = {
    made.__name__: made
    for made in (
        sequences.lstm_tagger,
        sequences.gru_denoiser,
        sequences.text_encoder,
        vision.query_detector,
        vision.shifted_windows,
        vision.diffusion_unet,
        sequences.audio_encoder,
        vision.flow_transformer,
        later.gru_forecaster,
        later.lstm_reader,
        later.excite_cnn,
        later.text_decoder,
        later.mel_classifier,
        later.residual_cnn,
        later.mixer,
        later.depthwise_cnn,
    )
}


if __name__ == "__main__":
    main(NETWORKS, __doc__ or "")
