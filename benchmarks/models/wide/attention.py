"""Attention in its usual shapes, and what stands in its place."""

from __future__ import annotations

from typing import Any

from benchmarks.models.wide.registry import Numbers, Values, wide

_TOKENS = Numbers(2000, (64,))


def _embedded(keras: Any, tokens: Any, width: int) -> Any:
    places = keras.layers.Embedding(tokens.shape[1], width)(keras.ops.arange(tokens.shape[1]))
    return keras.layers.Embedding(2000, width)(tokens) + places


def _block(keras: Any, x: Any, attend: Any, activation: str = "gelu") -> Any:
    """A transformer's block with normalization first; ``attend`` takes and gives (batch, tokens,
    width).
    """
    layers = keras.layers
    x = x + attend(layers.LayerNormalization()(x))
    wide_layer = layers.Dense(4 * x.shape[-1], activation=activation)
    return x + layers.Dense(x.shape[-1])(wide_layer(layers.LayerNormalization()(x)))


def _patches(keras: Any, image: Any, side: int, width: int) -> Any:
    x = keras.layers.Conv2D(width, side, side)(image)
    return keras.layers.Reshape((-1, width))(x)


@wide("vision transformers", 8, [Values((64, 64, 3))], Numbers(10))
def vision_transformer(keras: Any, x: Any) -> Any:
    """ViT (Dosovitskiy et al. 2020): patches of 8 × 8, four blocks of width 192 and three heads."""
    x = _patches(keras, x, 8, 192)
    x = x + keras.layers.Embedding(x.shape[1], 192)(keras.ops.arange(x.shape[1]))
    for _ in range(4):
        x = _block(keras, x, lambda y: keras.layers.MultiHeadAttention(3, 64)(y, y))
    return keras.layers.Dense(10)(
        keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(x))
    )


@wide("vision transformers", 4, [Values((64, 64, 3))], Numbers(10))
def windowed_transformer(keras: Any, x: Any) -> Any:
    """Attention inside windows of 4 × 4 patches, merged between stages (Swin, Liu et al.

    2021, without shifts).
    """
    layers = keras.layers
    ops = keras.ops
    x = _patches(keras, x, 4, 96)
    side = 16
    width = 96

    def in_windows(y: Any, side: int, width: int) -> Any:
        count = side // 4
        y = ops.reshape(y, (-1, count, 4, count, 4, width))
        y = ops.reshape(ops.transpose(y, (0, 1, 3, 2, 4, 5)), (-1, 16, width))
        y = layers.MultiHeadAttention(width // 32, 32)(y, y)
        y = ops.reshape(y, (-1, count, count, 4, 4, width))
        return ops.reshape(ops.transpose(y, (0, 1, 3, 2, 4, 5)), (-1, side * side, width))

    for stage in range(2):
        for _ in range(2):
            x = _block(keras, x, lambda y, side=side, width=width: in_windows(y, side, width))
        if not stage:
            x = layers.Conv2D(2 * width, 2, 2)(layers.Reshape((side, side, width))(x))
            side = side // 2
            width = 2 * width
            x = layers.Reshape((-1, width))(x)
    return layers.Dense(10)(layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x)))


@wide("vision transformers", 8, [Values((64, 64, 3))], Numbers(10))
def mlp_mixer(keras: Any, x: Any) -> Any:
    """MLP-Mixer (Tolstikhin et al. 2021): dense layers over the tokens in place of attention."""
    layers = keras.layers
    ops = keras.ops
    x = _patches(keras, x, 8, 192)

    def mix(y: Any) -> Any:
        y = layers.Dense(96, activation="gelu")(ops.transpose(y, (0, 2, 1)))
        return ops.transpose(layers.Dense(64)(y), (0, 2, 1))

    for _ in range(4):
        x = _block(keras, x, mix)
    return layers.Dense(10)(layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x)))


@wide("attention", 16, [_TOKENS], Numbers(2000, (64,)))
def causal_language_model(keras: Any, tokens: Any) -> Any:
    """A decoder of width 128 with causal attention and a Relu, logits from 2,000 tokens."""
    x = _embedded(keras, tokens, 128)
    for _ in range(2):
        attend = keras.layers.MultiHeadAttention(4, 32)
        x = _block(keras, x, lambda y, attend=attend: attend(y, y, use_causal_mask=True), "relu")
    return keras.layers.Dense(2000, use_bias=False)(keras.layers.LayerNormalization()(x))


@wide("attention", 8, [_TOKENS, _TOKENS], Numbers(2000, (64,)))
def translator(keras: Any, source: Any, shifted: Any) -> Any:
    """Encoder and decoder with cross attention (Vaswani et al.

    2017), two layers each, width 192.
    """
    layers = keras.layers
    memory = _embedded(keras, source, 192)
    x = _embedded(keras, shifted, 192)
    for _ in range(2):
        memory = _block(keras, memory, lambda y: layers.MultiHeadAttention(3, 64)(y, y))
    for _ in range(2):
        own = layers.MultiHeadAttention(3, 64)(x, x, use_causal_mask=True)
        x = layers.LayerNormalization()(x + own)
        x = _block(keras, x, lambda y: layers.MultiHeadAttention(3, 64)(y, memory))
    return layers.Dense(2000)(layers.LayerNormalization()(x))


@wide("attention", 8, [_TOKENS], Numbers(2000, (64,)))
def gated_decoder(keras: Any, tokens: Any) -> Any:
    """Grouped queries, root mean squares and gated dense layers, as in Llama (Touvron et al.

    2023).
    """
    layers = keras.layers
    x = layers.Embedding(2000, 256)(tokens)
    for _ in range(2):
        y = layers.RMSNormalization()(x)
        x = x + layers.GroupQueryAttention(32, 8, 2)(y, y, use_causal_mask=True)
        y = layers.RMSNormalization()(x)
        gated = layers.Dense(688, activation="silu", use_bias=False)(y) * layers.Dense(
            688, use_bias=False
        )(y)
        x = x + layers.Dense(256, use_bias=False)(gated)
    return layers.Dense(2000, use_bias=False)(layers.RMSNormalization()(x))


@wide("attention", 4, [Values((256, 64))], Numbers(10))
def long_sequence(keras: Any, x: Any) -> Any:
    """Attention over 256 places of width 64: the scores outweigh the layers around them."""
    for _ in range(2):
        x = _block(keras, x, lambda y: keras.layers.MultiHeadAttention(4, 16)(y, y))
    return keras.layers.Dense(10)(keras.layers.GlobalAveragePooling1D()(x))


@wide("attention", 8, [Values((256, 96))], Numbers(10))
def linear_attention(keras: Any, x: Any) -> Any:
    """Attention without a softmax over the places (Katharopoulos et al.

    2020): products in another order.
    """
    layers = keras.layers
    ops = keras.ops

    def attend(y: Any) -> Any:
        parts = [ops.reshape(layers.Dense(96)(y), (-1, 256, 4, 24)) for _ in range(3)]
        queries, keys = (ops.elu(part) + 1.0 for part in parts[:2])
        memory = ops.einsum("bthd,bthe->bhde", keys, parts[2])
        norm = ops.einsum("bthd,bhd->bth", queries, ops.sum(keys, axis=1))
        out = ops.einsum("bthd,bhde->bthe", queries, memory) / ops.expand_dims(norm, -1)
        return layers.Dense(96)(ops.reshape(out, (-1, 256, 96)))

    for _ in range(2):
        x = _block(keras, x, attend)
    return layers.Dense(10)(layers.GlobalAveragePooling1D()(x))


@wide("mixture of experts", 16, [_TOKENS], Numbers(2000, (64,)))
def mixture_of_experts(keras: Any, tokens: Any) -> Any:
    """Four experts of two dense layers between attention, weighed by a softmax of the gate (Shazeer
    et al. 2017).
    """
    layers = keras.layers
    ops = keras.ops
    x = _embedded(keras, tokens, 128)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 32)(y, y)
        y = layers.LayerNormalization()(x)
        weight = layers.Dense(4, activation="softmax")(y)
        experts = [layers.Dense(128)(layers.Dense(256, activation="relu")(y)) for _ in range(4)]
        x = x + ops.sum(ops.stack(experts, -1) * ops.expand_dims(weight, -2), -1)
    return layers.Dense(2000)(x)
