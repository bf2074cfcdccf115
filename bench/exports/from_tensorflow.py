"""Export norms and GELUs of Keras and TensorFlow with tf2onnx.  Usage: python … FOLDER"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np
import tensorflow as tf
import tf2onnx

WIDTH = 24
ROWS, IMAGES, FIRST = (None, 5, WIDTH), (None, 6, 4, WIDTH), (None, WIDTH, 6, 4)
WEIGHT = np.linspace(0.5, 1.5, WIDTH, dtype=np.float32)
BIAS = np.linspace(-0.3, 0.7, WIDTH, dtype=np.float32)


def by_moments(x):
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, BIAS, WEIGHT, 1e-6)


def by_rsqrt(x):
    mean = tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(x - mean), -1, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-5) * WEIGHT + BIAS


def by_deviation(x):
    mean = tf.reduce_mean(x, -1, keepdims=True)
    return (x - mean) / (tf.math.reduce_std(x, -1, keepdims=True) + 1e-6) * WEIGHT


def channels_first(x):
    mean, variance = tf.nn.moments(x, [1], keepdims=True)
    weight, bias = (tf.reshape(v, [1, WIDTH, 1, 1]) for v in (WEIGHT, BIAS))
    return (x - mean) / tf.sqrt(variance + 1e-6) * weight + bias


def root_mean_square(x):
    return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + 1e-6) * WEIGHT


def layers():
    return {
        "keras.layer_norm": (keras.layers.LayerNormalization(), ROWS),
        "keras.layer_norm_two_axes": (keras.layers.LayerNormalization(axis=[1, 2]), ROWS),
        "keras.layer_norm_channels_last": (keras.layers.LayerNormalization(), IMAGES),
        "keras.layer_norm_channels_first": (keras.layers.LayerNormalization(axis=1), FIRST),
        "keras.layer_norm_plain": (
            keras.layers.LayerNormalization(center=False, scale=False),
            ROWS,
        ),
        "keras.group_norm": (keras.layers.GroupNormalization(6), IMAGES),
        "keras.batch_norm": (keras.layers.BatchNormalization(), IMAGES),
        "keras.unit_norm": (keras.layers.UnitNormalization(), ROWS),
        "keras.gelu": (keras.layers.Activation("gelu"), ROWS),
        "keras.gelu_tanh": (
            keras.layers.Lambda(lambda x: keras.activations.gelu(x, approximate=True)),
            ROWS,
        ),
        "tf.layer_norm_by_moments": (keras.layers.Lambda(by_moments), ROWS),
        "tf.layer_norm_by_rsqrt": (keras.layers.Lambda(by_rsqrt), ROWS),
        "tf.layer_norm_by_deviation": (keras.layers.Lambda(by_deviation), ROWS),
        "tf.layer_norm_channels_first": (keras.layers.Lambda(channels_first), FIRST),
        "tf.rms_norm": (keras.layers.Lambda(root_mean_square), ROWS),
    }


def main() -> int:
    folder = Path(sys.argv[1])
    for name, (layer, shape) in layers().items():
        layer.build(shape)
        layer.set_weights([0.6 + 0.8 * abs(w - 0.3) for w in layer.get_weights()])
        for opset in (12, 15, 18):
            path = folder / f"{name.replace('.', f'.tf2onnx{opset}.', 1)}.onnx"
            function = tf.function(
                lambda x, layer=layer: layer(x), input_signature=[tf.TensorSpec(shape, name="x")]
            )
            try:
                tf2onnx.convert.from_function(
                    function,
                    input_signature=function.input_signature,
                    opset=opset,
                    output_path=str(path),
                )
            except Exception as error:  # noqa: BLE001 - an exporter may fail in any way
                path.unlink(missing_ok=True)
                print(f"{path.stem}: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
