"""Ordinary blocks, as Keras users write them with the layers' defaults, each between products.

On these the 16-bit work has to be what the op lists give: ``tests/painting/test_blocks.py`` holds
that no product of theirs is float32 but for its cost, and :mod:`benchmarks.decisions` keeps what
becomes of them. They are traced, never run, so that they have the sizes of real models.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.models.workload import Workload

Block = Callable[
    [Any, Any], Any
]  #: takes the module keras.layers and a tensor, gives one of the same rank

_SHAPES = {
    "image": (32, 32, 128),
    "volume": (16, 16, 16, 64),
    "sequence": (128, 256),
    "features": (1024,),
}
_BATCHES = {"image": 32, "volume": 8, "sequence": 32, "features": 1024}
_CLASSES = 100

BLOCKS: dict[str, Workload] = {}
"""All blocks, by name."""


def _enter(kind: str, blocks: Mapping[str, Block]) -> None:
    for name, block in blocks.items():
        BLOCKS[name] = _workload(name, kind, block)


def _enter_heads(kind: str, heads: Mapping[str, tuple[str, Mapping[str, Any], Block]]) -> None:
    """Enters models by what ends them: a loss of ``keras.losses``, its options, and the layer
    before it.
    """
    for name, (loss, options, head) in heads.items():
        BLOCKS[name] = _workload(name, kind, lambda layers, x: x, head, loss, options)


def _workload(
    name: str,
    kind: str,
    block: Block,
    head: Block | None = None,
    loss: str = "SparseCategoricalCrossentropy",
    options: Mapping[str, Any] = {"from_logits": True},
) -> Workload:
    shape = _SHAPES[kind]
    is_classifier = loss == "SparseCategoricalCrossentropy"

    @functools.cache
    def output_shape() -> tuple[int, ...]:
        return tuple(workload.model().output_shape[1:])

    def model() -> Any:
        import keras

        layers = keras.layers
        x = inputs = keras.Input(shape)
        x = _product(layers, kind, shape[-1])(x)
        x = block(layers, x)
        x = _product(layers, kind, shape[-1])(x)
        if head is not None:
            return keras.Model(inputs, head(layers, x), name=name)
        pooled = {"image": "GlobalAveragePooling2D", "volume": "GlobalAveragePooling3D"}
        pooled["sequence"] = "GlobalAveragePooling1D"
        x = getattr(layers, pooled[kind])()(x) if kind in pooled else x
        return keras.Model(inputs, layers.Dense(_CLASSES)(x), name=name)

    def data(examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((examples, *shape), dtype=np.float32)
        if is_classifier:
            return x, rng.integers(0, _CLASSES, (examples, *output_shape()[:-1])).astype(np.int32)
        return x, rng.random((examples, *output_shape()), dtype=np.float32)

    def made_loss() -> Any:
        import keras

        return getattr(keras.losses, loss)(**options)

    # TensorFlow is imported by what is called, not here.
    workload = Workload(
        name, "small", model, lambda *given: made_loss()(*given), data, _BATCHES[kind], ()
    )
    return workload


def _product(layers: Any, kind: str, width: int) -> Any:
    if kind in ("image", "volume"):
        return getattr(layers, "Conv2D" if kind == "image" else "Conv3D")(
            width, 3, padding="same", activation="relu"
        )
    return layers.Dense(width, activation="relu")


def _chain(*makers: Callable[[Any], Any]) -> Block:
    """Layers one after the other."""

    def block(layers: Any, x: Any) -> Any:
        for maker in makers:
            x = maker(layers)(x)
        return x

    return block


def _layer(name: str, *given: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda layers: getattr(layers, name)(*given, **options)


def _conv(
    width: int = 128, *, name: str = "Conv2D", taps: int = 3, **options: Any
) -> Callable[[Any], Any]:
    return _layer(name, width, taps, padding="same", **options)


def _depthwise(
    taps: int = 3, name: str = "DepthwiseConv2D", **options: Any
) -> Callable[[Any], Any]:
    return _layer(name, taps, padding="same", **options)


_BN = _layer("BatchNormalization")
_LN = _layer("LayerNormalization")
_GN = _layer("GroupNormalization")
_RMS = _layer("RMSNormalization")
_UNIT = _layer("UnitNormalization")


def _act(name: str) -> Callable[[Any], Any]:
    return _layer("Activation", name)


def _spectral(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda layers: layers.SpectralNormalization(inner(layers))


def _residual(*branch: Callable[[Any], Any], after: tuple[Callable[[Any], Any], ...] = ()) -> Block:
    def block(layers: Any, x: Any) -> Any:
        return _chain(*after)(layers, layers.Add()([x, _chain(*branch)(layers, x)]))

    return block


def _squeeze_and_excite(layers: Any, x: Any) -> Any:
    width = x.shape[-1]
    scale = layers.GlobalAveragePooling2D(keepdims=True)(x)
    scale = layers.Dense(width // 4, activation="relu")(scale)
    return layers.Multiply()([x, layers.Dense(width, activation="sigmoid")(scale)])


def _inverted_bottleneck(layers: Any, x: Any) -> Any:
    y = _chain(_conv(512, taps=1, use_bias=False), _BN, _act("swish"))(layers, x)
    y = _chain(_depthwise(use_bias=False), _BN, _act("swish"))(layers, y)
    y = _chain(_conv(taps=1, use_bias=False), _BN)(layers, _squeeze_and_excite(layers, y))
    return layers.Add()([x, y])


def _unet_step(layers: Any, x: Any) -> Any:
    y = _chain(_layer("MaxPooling2D"), _conv(256), _BN, _act("relu"))(layers, x)
    return layers.Concatenate()([layers.Conv2DTranspose(128, 2, 2)(y), x])


def _unet_step_by_upsampling(layers: Any, x: Any) -> Any:
    y = _chain(
        _conv(256, strides=2), _act("relu"), _layer("UpSampling2D", interpolation="bilinear")
    )(layers, x)
    return _chain(_conv(), _BN, _act("relu"))(layers, layers.Concatenate()([y, x]))


def _gated(layers: Any, x: Any) -> Any:
    filtered = layers.Conv1D(256, 2, padding="causal", dilation_rate=4, activation="tanh")(x)
    gate = layers.Conv1D(256, 2, padding="causal", dilation_rate=4, activation="sigmoid")(x)
    return layers.Add()([x, layers.Conv1D(256, 1)(layers.Multiply()([filtered, gate]))])


def _attended(*, norm: Callable[[Any], Any] = _LN, first: bool, **options: Any) -> Block:
    """Attention with its residual; the norm first, as in GPT-2, or last, as in BERT."""

    def block(layers: Any, x: Any) -> Any:
        y = norm(layers)(x) if first else x
        z = layers.Add()([x, layers.MultiHeadAttention(4, 64)(y, y, **options)])
        return z if first else norm(layers)(z)

    return block


def _grouped_queries(layers: Any, x: Any) -> Any:
    y = _RMS(layers)(x)
    return layers.Add()([x, layers.GroupQueryAttention(64, 4, 2)(y, y)])


def _gated_unit(activation: str, *, norm: Callable[[Any], Any] = _RMS) -> Block:
    """SwiGLU and its kin (Shazeer 2020)."""

    def block(layers: Any, x: Any) -> Any:
        y = norm(layers)(x)
        width = x.shape[-1]
        y = layers.Multiply()(
            [layers.Dense(2 * width, activation=activation)(y), layers.Dense(2 * width)(y)]
        )
        return layers.Add()([x, layers.Dense(width)(y)])

    return block


def _recurrent(name: str) -> Block:
    return _chain(_layer(name, 256, return_sequences=True))


def _highway(layers: Any, x: Any) -> Any:
    gate = layers.Dense(x.shape[-1], activation="sigmoid")(x)
    y = layers.Dense(x.shape[-1], activation="relu")(x)
    return gate * y + (1.0 - gate) * x


_enter(
    "image",
    {
        "conv_bn_relu": _chain(_conv(), _BN, _act("relu")),
        "conv_without_bias_bn_relu": _chain(_conv(use_bias=False), _BN, _act("relu")),
        "conv_relu_bn": _chain(_conv(activation="relu"), _BN),
        "conv_gelu_bn": _chain(_conv(activation="gelu"), _BN),
        "conv_swish_bn": _chain(_conv(activation="swish"), _BN),
        "conv_bn_gelu": _chain(_conv(), _BN, _act("gelu")),
        "conv_ln_gelu": _chain(_conv(), _LN, _act("gelu")),
        "conv_without_bias_ln_gelu": _chain(_conv(use_bias=False), _LN, _act("gelu")),
        "conv_gelu_ln": _chain(_conv(activation="gelu"), _LN),
        "conv_gn_swish": _chain(_conv(), _GN, _act("swish")),
        "conv_without_bias_gn_swish": _chain(_conv(use_bias=False), _GN, _act("swish")),
        "conv_relu_gn": _chain(_conv(activation="relu"), _GN),
        "conv_rms_swish": _chain(_conv(), _RMS, _act("swish")),
        "conv_unit_norm": _chain(_conv(), _UNIT, _act("relu")),
        "spectral_conv": _chain(_spectral(_conv()), _act("relu")),
        "conv_softmax": _chain(_conv(activation="softmax")),
        "strided_conv_bn": _chain(_conv(256, strides=2), _BN, _act("relu"), _layer("UpSampling2D")),
        "conv_transpose_bn_relu": _chain(_conv(name="Conv2DTranspose"), _BN, _act("relu")),
        "conv_transpose_gn_swish": _chain(_conv(name="Conv2DTranspose"), _GN, _act("swish")),
        "depthwise_bn_relu6": _chain(_depthwise(), _BN, _act("relu6")),
        "depthwise_ln": _chain(_depthwise(7), _LN),
        "separable_bn_relu": _chain(_conv(name="SeparableConv2D"), _BN, _act("relu")),
        "residual": _residual(
            *(_conv(use_bias=False), _BN, _act("relu"), _conv(use_bias=False), _BN),
            after=(_act("relu"),),
        ),
        "residual_with_biases": _residual(
            *(_conv(), _BN, _act("relu"), _conv(), _BN), after=(_act("relu"),)
        ),
        "residual_norm_first": _residual(_BN, _act("relu"), _conv(), _BN, _act("relu"), _conv()),
        "squeeze_and_excitation": lambda layers, x: _squeeze_and_excite(
            layers, _chain(_conv(), _BN)(layers, x)
        ),
        "inverted_bottleneck": _inverted_bottleneck,
        "convnext": _residual(
            _depthwise(7), _LN, _layer("Dense", 512, activation="gelu"), _layer("Dense", 128)
        ),
        "unet_step": _unet_step,
        "unet_step_by_upsampling": _unet_step_by_upsampling,
    },
)
_enter(
    "volume",
    {
        "conv3d_bn_relu": _chain(_conv(64, name="Conv3D"), _BN, _act("relu")),
        "conv3d_ln_gelu": _chain(_conv(64, name="Conv3D"), _LN, _act("gelu")),
        "conv3d_gn_relu": _chain(_conv(64, name="Conv3D"), _GN, _act("relu")),
        "conv3d_transpose_bn_relu": _chain(_conv(64, name="Conv3DTranspose"), _BN, _act("relu")),
    },
)
_enter(
    "sequence",
    {
        "conv1d_bn_relu": _chain(_conv(256, name="Conv1D"), _BN, _act("relu")),
        "conv1d_ln_gelu": _chain(_conv(256, name="Conv1D"), _LN, _act("gelu")),
        "conv1d_without_bias_gn_swish": _chain(
            _conv(256, name="Conv1D", use_bias=False), _GN, _act("swish")
        ),
        "conv1d_transpose_bn_relu": _chain(_conv(256, name="Conv1DTranspose"), _BN, _act("relu")),
        "depthwise_conv1d_ln": _chain(_depthwise(name="DepthwiseConv1D"), _LN, _act("swish")),
        "separable_conv1d_bn_relu": _chain(_conv(256, name="SeparableConv1D"), _BN, _act("relu")),
        "gated_conv1d": _gated,
        "attention_norm_last": _attended(first=False),
        "attention_norm_first": _attended(first=True),
        "causal_attention_norm_first": _attended(first=True, use_causal_mask=True),
        "attention_rms_first": _attended(norm=_RMS, first=True),
        "grouped_query_attention": _grouped_queries,
        "feed_forward_norm_last": _residual(
            _layer("Dense", 1024, activation="gelu"), _layer("Dense", 256), after=(_LN,)
        ),
        "feed_forward_norm_first": _residual(
            _LN, _layer("Dense", 1024, activation="gelu"), _layer("Dense", 256)
        ),
        "swiglu": _gated_unit("swish"),
        "geglu": _gated_unit("gelu", norm=_LN),
        "lstm": _recurrent("LSTM"),
        "gru": _recurrent("GRU"),
        "simple_rnn": _recurrent("SimpleRNN"),
        "bidirectional_lstm": lambda layers, x: layers.Bidirectional(
            layers.LSTM(128, return_sequences=True)
        )(x),
        "lstm_ln": lambda layers, x: _LN(layers)(layers.LSTM(256, return_sequences=True)(x)),
    },
)
_enter(
    "features",
    {
        "dense_bn_relu": _chain(_layer("Dense", 1024), _BN, _act("relu")),
        "dense_without_bias_bn_relu": _chain(
            _layer("Dense", 1024, use_bias=False), _BN, _act("relu")
        ),
        "dense_relu_bn": _chain(_layer("Dense", 1024, activation="relu"), _BN),
        "dense_relu_bn_dropout": _chain(
            _layer("Dense", 1024, activation="relu"), _BN, _layer("Dropout", 0.3)
        ),
        "dense_ln_gelu": _chain(_layer("Dense", 1024), _LN, _act("gelu")),
        "dense_without_bias_ln_gelu": _chain(
            _layer("Dense", 1024, use_bias=False), _LN, _act("gelu")
        ),
        "dense_gelu_ln": _chain(_layer("Dense", 1024, activation="gelu"), _LN),
        "dense_gn_swish": _chain(_layer("Dense", 1024), _GN, _act("swish")),
        "dense_rms_swish": _chain(_layer("Dense", 1024), _RMS, _act("swish")),
        "dense_unit_norm": _chain(_layer("Dense", 1024), _UNIT),
        "spectral_dense": _chain(_spectral(_layer("Dense", 1024)), _act("relu")),
        "dense_softmax": _chain(_layer("Dense", 1024, activation="softmax")),
        "dense_residual": _residual(
            _layer("Dense", 1024, activation="relu"), _layer("Dense", 1024)
        ),
        "highway": _highway,
    },
)
_DENSE = _chain(_layer("Dense", _CLASSES))
_SOFTMAX = _chain(_layer("Dense", _CLASSES, activation="softmax"))
_SIGMOID = _chain(_layer("Dense", _CLASSES, activation="sigmoid"))
_FROM_LOGITS = {"from_logits": True}
_enter_heads(
    "features",
    {
        "head_cross_entropy_of_softmax": ("SparseCategoricalCrossentropy", {}, _SOFTMAX),
        "head_categorical_cross_entropy": ("CategoricalCrossentropy", _FROM_LOGITS, _DENSE),
        "head_binary_cross_entropy": ("BinaryCrossentropy", {}, _SIGMOID),
        "head_mse": ("MeanSquaredError", {}, _DENSE),
        "head_mae": ("MeanAbsoluteError", {}, _DENSE),
        "head_huber": ("Huber", {}, _DENSE),
        "head_log_cosh": ("LogCosh", {}, _DENSE),
        "head_cosine": ("CosineSimilarity", {}, _DENSE),
    },
)
_enter_heads(
    "image",
    {
        "conv_head_mse": ("MeanSquaredError", {}, _chain(_conv(64))),
        "conv_head_mae": ("MeanAbsoluteError", {}, _chain(_conv(64, activation="sigmoid"))),
        "conv_head_binary_cross_entropy": (
            "BinaryCrossentropy",
            _FROM_LOGITS,
            _chain(_conv(64, taps=1)),
        ),
        "conv_head_cross_entropy": (
            "SparseCategoricalCrossentropy",
            _FROM_LOGITS,
            _chain(_conv(_CLASSES, taps=1)),
        ),
    },
)
_enter_heads(
    "sequence", {"sequence_head_mse": ("MeanSquaredError", {}, _chain(_layer("Dense", 256)))}
)
