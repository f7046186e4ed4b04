"""Ordinary blocks, as Keras users write them with the layers' defaults, each between products.

On these the 16-bit work has to be what the op lists give: ``tests/painting/test_blocks.py`` holds
that no product of theirs is float32 but for its cost, and :mod:`benchmarks.decisions` keeps what
becomes of them. They are traced, never run, so that they have the sizes of real models.

A chain of layers is written in words: ``"conv:no_bias bn relu"`` is a convolution without a bias, a
batch normalization and an activation. A product has the dimensions of its input, the width of its
kind of model, and after a colon its activation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.models.workload import Workload

Block = Callable[[Any, Any], Any]
"""Takes the module keras.layers and a tensor, gives one of the same rank."""

_SHAPES = {
    "image": (32, 32, 128),
    "volume": (16, 16, 16, 64),
    "sequence": (128, 256),
    "features": (1024,),
}
_WIDTHS = {2: 128, 3: 64, 1: 256, 0: 1024}  #: of products, by the dimensions besides the channels
_BATCHES = {"image": 32, "volume": 8, "sequence": 32, "features": 1024}
_CLASSES = 100
_FROM_LOGITS = {"from_logits": True}
_NORMS = {
    "bn": "BatchNormalization",
    "ln": "LayerNormalization",
    "gn": "GroupNormalization",
    "rms": "RMSNormalization",
    "unit": "UnitNormalization",
}
#: The classes of products: a number of dimensions stands in for the ``#``.
_PRODUCTS = {
    "dense": "Dense",
    "conv": "Conv#D",
    "conv_transpose": "Conv#DTranspose",
    "separable": "SeparableConv#D",
    "depthwise": "DepthwiseConv#D",
}

BLOCKS: dict[str, Workload] = {}
"""All blocks, by name."""


def _enter(kind: str, blocks: Mapping[str, str | Block]) -> None:
    """Enters classifiers around blocks."""
    for name, block in blocks.items():
        BLOCKS[name] = _workload(
            name, kind, block, _CLASSIFIERS[kind], "SparseCategoricalCrossentropy", _FROM_LOGITS
        )


def _enter_heads(
    kind: str, heads: Mapping[str, tuple[str, Mapping[str, Any], str | Block]]
) -> None:
    """Enters models by what ends them: a loss of ``keras.losses``, its options, and the layer
    before it.
    """
    for name, (loss, options, head) in heads.items():
        BLOCKS[name] = _workload(name, kind, _chain(), head, loss, options)


def _workload(
    name: str,
    kind: str,
    block: str | Block,
    head: str | Block,
    loss: str,
    options: Mapping[str, Any],
) -> Workload:
    """Makes a model of product, block, product and head, with its loss and random data."""
    shape = _SHAPES[kind]
    product = "conv:relu" if kind in ("image", "volume") else "dense:relu"
    whole = _chain(product, block, product, head)

    # TensorFlow is imported by what is called, not here.
    def model() -> Any:
        import keras

        inputs = keras.Input(shape)
        return keras.Model(inputs, whole(keras.layers, inputs), name=name)

    def data(examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((examples, *shape), dtype=np.float32)
        target_shape = (examples, *model().output_shape[1:])
        if loss == "SparseCategoricalCrossentropy":
            return x, rng.integers(0, _CLASSES, target_shape[:-1]).astype(np.int32)
        return x, rng.random(target_shape, dtype=np.float32)

    def made_loss() -> Any:
        import keras

        return getattr(keras.losses, loss)(**options)

    # It makes the loss when it is called.
    return Workload(model, lambda *given: made_loss()(*given), data, _BATCHES[kind], ())


def _chain(*parts: str | Block) -> Block:
    """Puts layers one after the other; a string has a word for each."""

    def block(layers: Any, x: Any) -> Any:
        for part in parts:
            if not isinstance(part, str):
                x = part(layers, x)
                continue
            for word in part.split():
                x = _spelled(layers, word, x)(x)
        return x

    return block


def _spelled(layers: Any, word: str, x: Any) -> Any:
    """Makes the layer of a word for an input ``x``: a norm, a product or an activation."""
    if word in _NORMS:
        return getattr(layers, _NORMS[word])()
    product, _, option = word.partition(":")
    if product not in _PRODUCTS:
        return layers.Activation(word)
    # A product.
    options: dict[str, Any] = {}
    if option == "no_bias":
        options["use_bias"] = False
    elif option:
        options["activation"] = option
    dimensions = len(x.shape) - 2
    maker = getattr(layers, _PRODUCTS[product].replace("#", str(dimensions)))
    if product == "depthwise":
        return maker(3, padding="same", **options)
    width = _WIDTHS[dimensions]
    if product == "dense":
        return maker(width, **options)
    return maker(width, 3, padding="same", **options)


def _layer(name: str, *given: Any, **options: Any) -> Block:
    return lambda layers, x: getattr(layers, name)(*given, **options)(x)


def _spectral(word: str) -> Block:
    return lambda layers, x: layers.SpectralNormalization(_spelled(layers, word, x))(x)


def _residual(*branch: str | Block, after: str = "") -> Block:
    def block(layers: Any, x: Any) -> Any:
        total = layers.Add()([x, _chain(*branch)(layers, x)])
        return _chain(after)(layers, total)

    return block


def _squeeze_and_excite(layers: Any, x: Any) -> Any:
    width = x.shape[-1]
    scale = layers.GlobalAveragePooling2D(keepdims=True)(x)
    scale = layers.Dense(width // 4, activation="relu")(scale)
    scale = layers.Dense(width, activation="sigmoid")(scale)
    return layers.Multiply()([x, scale])


def _inverted_bottleneck(layers: Any, x: Any) -> Any:
    expand = _layer("Conv2D", 512, 1, padding="same", use_bias=False)
    project = _layer("Conv2D", 128, 1, padding="same", use_bias=False)
    y = _chain(expand, "bn swish depthwise:no_bias bn swish")(layers, x)
    y = _squeeze_and_excite(layers, y)
    y = _chain(project, "bn")(layers, y)
    return layers.Add()([x, y])


def _unet_step(layers: Any, x: Any) -> Any:
    wider = _layer("Conv2D", 256, 3, padding="same")
    y = _chain(_layer("MaxPooling2D"), wider, "bn relu")(layers, x)
    y = layers.Conv2DTranspose(128, 2, 2)(y)
    return layers.Concatenate()([y, x])


def _unet_step_by_upsampling(layers: Any, x: Any) -> Any:
    smaller = _layer("Conv2D", 256, 3, padding="same", strides=2)
    larger = _layer("UpSampling2D", interpolation="bilinear")
    y = _chain(smaller, "relu", larger)(layers, x)
    y = layers.Concatenate()([y, x])
    y = layers.Conv2D(128, 3, padding="same")(y)
    return _chain("bn relu")(layers, y)


def _gated(layers: Any, x: Any) -> Any:
    dilated = {"padding": "causal", "dilation_rate": 4}
    filtered = layers.Conv1D(256, 2, activation="tanh", **dilated)(x)
    gate = layers.Conv1D(256, 2, activation="sigmoid", **dilated)(x)
    joined = layers.Conv1D(256, 1)(layers.Multiply()([filtered, gate]))
    return layers.Add()([x, joined])


def _attended(*, norm: str = "ln", first: bool, **options: Any) -> Block:
    """Attention with its residual; the norm first, as in GPT-2, or last, as in BERT."""

    def attend(layers: Any, x: Any) -> Any:
        return layers.MultiHeadAttention(4, 64)(x, x, **options)

    if first:
        return _residual(norm, attend)
    return _residual(attend, after=norm)


def _grouped_queries(layers: Any, x: Any) -> Any:
    return layers.GroupQueryAttention(64, 4, 2)(x, x)


def _gated_unit(activation: str, *, norm: str = "rms") -> Block:
    """SwiGLU and its kin (Shazeer 2020)."""

    def unit(layers: Any, x: Any) -> Any:
        width = x.shape[-1]
        gate = layers.Dense(2 * width, activation=activation)(x)
        linear = layers.Dense(2 * width)(x)
        return layers.Dense(width)(layers.Multiply()([gate, linear]))

    return _residual(norm, unit)


def _recurrent(name: str) -> Block:
    return _layer(name, 256, return_sequences=True)


def _bidirectional_lstm(layers: Any, x: Any) -> Any:
    lstm = layers.LSTM(128, return_sequences=True)
    return layers.Bidirectional(lstm)(x)


def _highway(layers: Any, x: Any) -> Any:
    gate = layers.Dense(x.shape[-1], activation="sigmoid")(x)
    y = layers.Dense(x.shape[-1], activation="relu")(x)
    return gate * y + (1.0 - gate) * x


_DENSE = _layer("Dense", _CLASSES)
_CLASSIFIERS = {
    "image": _chain(_layer("GlobalAveragePooling2D"), _DENSE),
    "volume": _chain(_layer("GlobalAveragePooling3D"), _DENSE),
    "sequence": _chain(_layer("GlobalAveragePooling1D"), _DENSE),
    "features": _DENSE,
}
_enter(
    "image",
    {
        "conv_bn_relu": "conv bn relu",
        "conv_without_bias_bn_relu": "conv:no_bias bn relu",
        "conv_relu_bn": "conv:relu bn",
        "conv_gelu_bn": "conv:gelu bn",
        "conv_swish_bn": "conv:swish bn",
        "conv_bn_gelu": "conv bn gelu",
        "conv_ln_gelu": "conv ln gelu",
        "conv_without_bias_ln_gelu": "conv:no_bias ln gelu",
        "conv_gelu_ln": "conv:gelu ln",
        "conv_gn_swish": "conv gn swish",
        "conv_without_bias_gn_swish": "conv:no_bias gn swish",
        "conv_relu_gn": "conv:relu gn",
        "conv_rms_swish": "conv rms swish",
        "conv_unit_norm": "conv unit relu",
        "spectral_conv": _chain(_spectral("conv"), "relu"),
        "conv_softmax": "conv:softmax",
        "strided_conv_bn": _chain(
            _layer("Conv2D", 256, 3, padding="same", strides=2), "bn relu", _layer("UpSampling2D")
        ),
        "conv_transpose_bn_relu": "conv_transpose bn relu",
        "conv_transpose_gn_swish": "conv_transpose gn swish",
        "depthwise_bn_relu6": "depthwise bn relu6",
        "depthwise_ln": _chain(_layer("DepthwiseConv2D", 7, padding="same"), "ln"),
        "separable_bn_relu": "separable bn relu",
        "residual": _residual("conv:no_bias bn relu conv:no_bias bn", after="relu"),
        "residual_with_biases": _residual("conv bn relu conv bn", after="relu"),
        "residual_norm_first": _residual("bn relu conv bn relu conv"),
        "squeeze_and_excitation": _chain("conv bn", _squeeze_and_excite),
        "inverted_bottleneck": _inverted_bottleneck,
        "convnext": _residual(
            _layer("DepthwiseConv2D", 7, padding="same"),
            "ln",
            _layer("Dense", 512, activation="gelu"),
            _layer("Dense", 128),
        ),
        "unet_step": _unet_step,
        "unet_step_by_upsampling": _unet_step_by_upsampling,
    },
)
_enter(
    "volume",
    {
        "conv3d_bn_relu": "conv bn relu",
        "conv3d_ln_gelu": "conv ln gelu",
        "conv3d_gn_relu": "conv gn relu",
        "conv3d_transpose_bn_relu": "conv_transpose bn relu",
    },
)
_WIDE_GELU = _layer("Dense", 1024, activation="gelu")
_enter(
    "sequence",
    {
        "conv1d_bn_relu": "conv bn relu",
        "conv1d_ln_gelu": "conv ln gelu",
        "conv1d_without_bias_gn_swish": "conv:no_bias gn swish",
        "conv1d_transpose_bn_relu": "conv_transpose bn relu",
        "depthwise_conv1d_ln": "depthwise ln swish",
        "separable_conv1d_bn_relu": "separable bn relu",
        "gated_conv1d": _gated,
        "attention_norm_last": _attended(first=False),
        "attention_norm_first": _attended(first=True),
        "causal_attention_norm_first": _attended(first=True, use_causal_mask=True),
        "attention_rms_first": _attended(norm="rms", first=True),
        "grouped_query_attention": _residual("rms", _grouped_queries),
        "feed_forward_norm_last": _residual(_WIDE_GELU, _layer("Dense", 256), after="ln"),
        "feed_forward_norm_first": _residual("ln", _WIDE_GELU, _layer("Dense", 256)),
        "swiglu": _gated_unit("swish"),
        "geglu": _gated_unit("gelu", norm="ln"),
        "lstm": _recurrent("LSTM"),
        "gru": _recurrent("GRU"),
        "simple_rnn": _recurrent("SimpleRNN"),
        "bidirectional_lstm": _bidirectional_lstm,
        "lstm_ln": _chain(_recurrent("LSTM"), "ln"),
    },
)
_enter(
    "features",
    {
        "dense_bn_relu": "dense bn relu",
        "dense_without_bias_bn_relu": "dense:no_bias bn relu",
        "dense_relu_bn": "dense:relu bn",
        "dense_relu_bn_dropout": _chain("dense:relu bn", _layer("Dropout", 0.3)),
        "dense_ln_gelu": "dense ln gelu",
        "dense_without_bias_ln_gelu": "dense:no_bias ln gelu",
        "dense_gelu_ln": "dense:gelu ln",
        "dense_gn_swish": "dense gn swish",
        "dense_rms_swish": "dense rms swish",
        "dense_unit_norm": "dense unit",
        "spectral_dense": _chain(_spectral("dense"), "relu"),
        "dense_softmax": "dense:softmax",
        "dense_residual": _residual("dense:relu dense"),
        "highway": _highway,
    },
)
_SOFTMAX = _layer("Dense", _CLASSES, activation="softmax")
_SIGMOID = _layer("Dense", _CLASSES, activation="sigmoid")
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
_CONV = _layer("Conv2D", 64, 3, padding="same")
_CONV_SIGMOID = _layer("Conv2D", 64, 3, padding="same", activation="sigmoid")
_POINTS = _layer("Conv2D", 64, 1, padding="same")
_CLASSES_OF_POINTS = _layer("Conv2D", _CLASSES, 1, padding="same")
_enter_heads(
    "image",
    {
        "conv_head_mse": ("MeanSquaredError", {}, _CONV),
        "conv_head_mae": ("MeanAbsoluteError", {}, _CONV_SIGMOID),
        "conv_head_binary_cross_entropy": ("BinaryCrossentropy", _FROM_LOGITS, _POINTS),
        "conv_head_cross_entropy": (
            "SparseCategoricalCrossentropy",
            _FROM_LOGITS,
            _CLASSES_OF_POINTS,
        ),
    },
)
_enter_heads("sequence", {"sequence_head_mse": ("MeanSquaredError", {}, "dense")})
