"""Attention in its usual shapes, and what stands in its place."""

from __future__ import annotations

from benchmarks.models.wide.registry import Numbers, Values, wide

_TOKENS = Numbers(2000, (64,))
_SMALL_IMAGE = [Values((64, 64, 3))]


def _embedded(keras, tokens, width):
    length = tokens.shape[1]
    places = keras.layers.Embedding(length, width)(keras.ops.arange(length))
    words = keras.layers.Embedding(2000, width)(tokens)
    return words + places


def _normalized(keras, x):
    return keras.layers.LayerNormalization()(x)


def _block(keras, x, attend, activation="gelu"):
    """A transformer's block with normalization first; ``attend`` takes and gives (batch, tokens,
    width).
    """
    layers = keras.layers
    width = x.shape[-1]
    x = x + attend(_normalized(keras, x))
    y = _normalized(keras, x)
    y = layers.Dense(4 * width, activation=activation)(y)
    y = layers.Dense(width)(y)
    return x + y


def _self_attention(keras, heads, width):
    """A function that makes a layer of attention with each call."""
    return lambda y: keras.layers.MultiHeadAttention(heads, width)(y, y)


def _patches(keras, image, side, width):
    x = keras.layers.Conv2D(width, side, side)(image)
    return keras.layers.Reshape((-1, width))(x)


def _pooled_logits(keras, x):
    """The logits of ten classes, from the mean of all places."""
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.layers.Dense(10)(x)


@wide("vision transformers", 8, _SMALL_IMAGE, Numbers(10))
def vision_transformer(keras, x):
    """ViT (Dosovitskiy et al. 2020): patches of 8 × 8, four blocks of width 192 and three heads."""
    x = _patches(keras, x, 8, 192)
    length = x.shape[1]
    x = x + keras.layers.Embedding(length, 192)(keras.ops.arange(length))
    for _ in range(4):
        x = _block(keras, x, _self_attention(keras, 3, 64))
    x = _normalized(keras, x)
    return _pooled_logits(keras, x)


@wide("vision transformers", 4, _SMALL_IMAGE, Numbers(10))
def windowed_transformer(keras, x):
    """Swin (Liu et al. 2021) without shifts: attention inside windows of 4 × 4 patches, which are
    merged between two stages.
    """
    layers = keras.layers
    ops = keras.ops

    def stage(x, side, width):
        count = side // 4

        def attend(y):
            # From rows of patches to windows, and back.
            y = ops.reshape(y, (-1, count, 4, count, 4, width))
            y = ops.transpose(y, (0, 1, 3, 2, 4, 5))
            y = ops.reshape(y, (-1, 16, width))
            y = layers.MultiHeadAttention(width // 32, 32)(y, y)
            y = ops.reshape(y, (-1, count, count, 4, 4, width))
            y = ops.transpose(y, (0, 1, 3, 2, 4, 5))
            return ops.reshape(y, (-1, side * side, width))

        for _ in range(2):
            x = _block(keras, x, attend)
        return x

    x = _patches(keras, x, 4, 96)
    x = stage(x, 16, 96)
    x = layers.Reshape((16, 16, 96))(x)
    x = layers.Conv2D(192, 2, 2)(x)
    x = layers.Reshape((-1, 192))(x)
    x = stage(x, 8, 192)
    x = _normalized(keras, x)
    return _pooled_logits(keras, x)


@wide("vision transformers", 8, _SMALL_IMAGE, Numbers(10))
def mlp_mixer(keras, x):
    """MLP-Mixer (Tolstikhin et al. 2021): dense layers over the tokens in place of attention."""
    layers = keras.layers
    ops = keras.ops

    def mix(y):
        y = ops.transpose(y, (0, 2, 1))
        y = layers.Dense(96, activation="gelu")(y)
        y = layers.Dense(64)(y)
        return ops.transpose(y, (0, 2, 1))

    x = _patches(keras, x, 8, 192)
    for _ in range(4):
        x = _block(keras, x, mix)
    x = _normalized(keras, x)
    return _pooled_logits(keras, x)


@wide("attention", 16, [_TOKENS], Numbers(2000, (64,)))
def causal_language_model(keras, tokens):
    """A decoder of width 128 with causal attention and a Relu, logits from 2,000 tokens."""
    layers = keras.layers

    def attend(y):
        return layers.MultiHeadAttention(4, 32)(y, y, use_causal_mask=True)

    x = _embedded(keras, tokens, 128)
    for _ in range(2):
        x = _block(keras, x, attend, "relu")
    x = _normalized(keras, x)
    return layers.Dense(2000, use_bias=False)(x)


@wide("attention", 8, [_TOKENS, _TOKENS], Numbers(2000, (64,)))
def translator(keras, source, shifted):
    """Encoder and decoder with cross attention (Vaswani et al. 2017), two layers of width 192."""
    layers = keras.layers
    memory = _embedded(keras, source, 192)
    x = _embedded(keras, shifted, 192)
    for _ in range(2):
        memory = _block(keras, memory, _self_attention(keras, 3, 64))

    def look_up(y):
        return layers.MultiHeadAttention(3, 64)(y, memory)

    for _ in range(2):
        own = layers.MultiHeadAttention(3, 64)(x, x, use_causal_mask=True)
        x = _normalized(keras, x + own)
        x = _block(keras, x, look_up)
    x = _normalized(keras, x)
    return layers.Dense(2000)(x)


@wide("attention", 8, [_TOKENS], Numbers(2000, (64,)))
def gated_decoder(keras, tokens):
    """Llama (Touvron et al. 2023): grouped queries, root mean squares and gated dense layers."""
    layers = keras.layers
    x = layers.Embedding(2000, 256)(tokens)
    for _ in range(2):
        y = layers.RMSNormalization()(x)
        x = x + layers.GroupQueryAttention(32, 8, 2)(y, y, use_causal_mask=True)
        y = layers.RMSNormalization()(x)
        gate = layers.Dense(688, activation="silu", use_bias=False)(y)
        linear = layers.Dense(688, use_bias=False)(y)
        x = x + layers.Dense(256, use_bias=False)(gate * linear)
    x = layers.RMSNormalization()(x)
    return layers.Dense(2000, use_bias=False)(x)


@wide("attention", 4, [Values((256, 64))], Numbers(10))
def long_sequence(keras, x):
    """Attention over 256 places of width 64: the scores outweigh the layers around them."""
    for _ in range(2):
        x = _block(keras, x, _self_attention(keras, 4, 16))
    return _pooled_logits(keras, x)


@wide("attention", 8, [Values((256, 96))], Numbers(10))
def linear_attention(keras, x):
    """Attention without a softmax over the places (Katharopoulos et al. 2020): products in another
    order.
    """
    layers = keras.layers
    ops = keras.ops

    def heads(y):
        return ops.reshape(layers.Dense(96)(y), (-1, 256, 4, 24))

    def attend(y):
        queries = heads(y)
        keys = heads(y)
        values = heads(y)
        queries = ops.elu(queries) + 1.0
        keys = ops.elu(keys) + 1.0
        memory = ops.einsum("bthd,bthe->bhde", keys, values)
        norm = ops.einsum("bthd,bhd->bth", queries, ops.sum(keys, axis=1))
        out = ops.einsum("bthd,bhde->bthe", queries, memory)
        out = out / ops.expand_dims(norm, -1)
        out = ops.reshape(out, (-1, 256, 96))
        return layers.Dense(96)(out)

    for _ in range(2):
        x = _block(keras, x, attend)
    return _pooled_logits(keras, x)


@wide("mixture of experts", 16, [_TOKENS], Numbers(2000, (64,)))
def mixture_of_experts(keras, tokens):
    """Four experts of two dense layers between attention, weighed by a softmax of the gate (Shazeer
    et al. 2017).
    """
    layers = keras.layers
    ops = keras.ops

    def expert(y):
        narrow = layers.Dense(128)
        y = layers.Dense(256, activation="relu")(y)
        return narrow(y)

    x = _embedded(keras, tokens, 128)
    for _ in range(2):
        y = _normalized(keras, x)
        x = x + layers.MultiHeadAttention(4, 32)(y, y)
        y = _normalized(keras, x)
        weight = layers.Dense(4, activation="softmax")(y)
        experts = ops.stack([expert(y) for _ in range(4)], -1)
        x = x + ops.sum(experts * ops.expand_dims(weight, -2), -1)
    return layers.Dense(2000)(x)
