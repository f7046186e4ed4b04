"""Every layer of Keras 3 between two dense layers: forward, and the gradient of every variable."""

import functools

import keras
import numpy as np

from tests.truth.bench import Program, by_name, in_a_quarter, mean_square, public_classes

ROWS = (16,)
SEQUENCE = (8, 6)
IMAGE = (8, 8, 3)
VOLUME = (4, 4, 4, 3)
FILM = (3, 6, 6, 3)
CASES = ("1", "1e-3", "1e3", "zeros", "equal rows", "half masked", "mean 50")
_BATCH = 4
_RESULTS = (
    64  # of the last product: the loss is a mean of so many that one rounding of each shows little
)
_DRAWS = 3

#: Arguments of layers that need some, and of those whose usual ones mean nothing here.
ARGUMENTS = {
    **{
        f"Adaptive{kind}Pooling{n}D": {"output_size": 2}
        for kind in ("Average", "Max")
        for n in (1, 2, 3)
    },
    **{f"AveragePooling{n}D": {"pool_size": 2} for n in (1, 2, 3)},
    **{f"{kind}Dropout": {"rate": 0.3} for kind in ("", "Alpha", "Gaussian")},
    **{f"SpatialDropout{n}D": {"rate": 0.3} for n in (1, 2, 3)},
    **{
        f"{kind}{n}D": {"filters": 4, "kernel_size": 3}
        for kind in ("Conv", "ConvLSTM", "SeparableConv")
        for n in (1, 2)
    },
    **{f"Conv{n}DTranspose": {"filters": 4, "kernel_size": 3, "strides": 2} for n in (1, 2)},
    **{f"DepthwiseConv{n}D": {"kernel_size": 3} for n in (1, 2)},
    **{key: {"units": 5} for key in ("GRU", "LSTM", "SimpleRNN")},
    "Solarization": {"value_range": (0.0, 1.0)},
    "Activation": {"activation": "silu"},
    "ActivityRegularization": {"l1": 0.01, "l2": 0.01},
    "Bidirectional": {"layer": lambda: keras.layers.LSTM(4)},
    "CenterCrop": {"height": 5, "width": 5},
    "Conv3D": {"filters": 4, "kernel_size": 2},
    "Conv3DTranspose": {"filters": 4, "kernel_size": 2, "strides": 2},
    "ConvLSTM3D": {"filters": 2, "kernel_size": 2},
    "Dense": {"units": 5, "activation": "gelu"},
    "Dot": {"axes": 1, "normalize": True},
    "EinsumDense": {"equation": "abc,cd->abd", "output_shape": (SEQUENCE[0], 5), "bias_axes": "d"},
    "GaussianNoise": {"stddev": 0.2},
    "GroupNormalization": {"groups": 3},
    "GroupQueryAttention": {"head_dim": 4, "num_query_heads": 4, "num_key_value_heads": 2},
    "Lambda": {"function": lambda: lambda x: x * keras.ops.sigmoid(x) + 0.1 * x},
    "MelSpectrogram": {
        "fft_length": 16,
        "sequence_stride": 8,
        "num_mel_bins": 6,
        "sampling_rate": 64,
        "max_freq": 32,
    },
    "MultiHeadAttention": {"num_heads": 2, "key_dim": 4},
    "Normalization": {"mean": 0.3, "variance": 2.0},
    "Permute": {"dims": (2, 1)},
    "RNN": {"cell": lambda: keras.layers.GRUCell(5)},
    "RepeatVector": {"n": 3},
    "Rescaling": {"scale": 1 / 127.5, "offset": -1.0},
    "Reshape": {"target_shape": (4, 4)},
    "Resizing": {"height": 5, "width": 11},
    "STFTSpectrogram": {"frame_length": 16, "frame_step": 8},
    "SpectralNormalization": {"layer": lambda: keras.layers.Dense(5)},
    "TimeDistributed": {"layer": lambda: keras.layers.Dense(5, activation="tanh")},
}

#: Shapes of layers that take other things than rows of numbers, by the layer's name.
SHAPES = by_name(
    {
        IMAGE: """AutoContrast AugMix CenterCrop GroupNormalization RandAugment Resizing
            Solarization ContrastLimitedAdaptiveHistogramEqualization""",
        (4, 6, 3): "ConvLSTM1D",
        FILM: "ConvLSTM2D",
        (2, 3, 3, 3, 2): "ConvLSTM3D",
        (64,): "MelSpectrogram",
        (64, 1): "STFTSpectrogram",
        SEQUENCE: """AdditiveAttention Attention Bidirectional EinsumDense GRU GroupQueryAttention
            LSTM Masking MultiHeadAttention Permute RNN SimpleRNN TimeDistributed""",
    }
)

#: Layers whose input is several tensors: how many.
INPUTS = by_name(
    {
        2: """Add Average Concatenate Dot Maximum Minimum Multiply Subtract AdditiveAttention
            Attention MultiHeadAttention GroupQueryAttention""",
    }
)
_AS_ARGUMENTS = ("MultiHeadAttention", "GroupQueryAttention")


def public_layers():
    """The names of the layers that Keras exports."""
    return public_classes(keras.layers, keras.layers.Layer)


_PREPARES = (
    "prepares data with labels, boxes or random partners; its arithmetic is that of layers that "
    "are here"
)
#: Layers that are no program here, and why.
LEFT_OUT = {
    **{name: _PREPARES for name in public_layers() if name.startswith("Random")},
    **by_name(
        {
            "takes integers or text, and computes no floats that follow a product": """
                CategoryEncoding Discretization HashedCrossing Hashing IntegerLookup StringLookup
                TextVectorization InputLayer""",
            "a base class, or needs another library": """Layer Wrapper FlaxLayer JaxLayer
                TFSMLayer TorchModuleWrapper Pipeline""",
            "Keras cannot make a functional model of it: its tensors are part of a cycle": (
                "Equalization"
            ),
            _PREPARES: "AugMix CutMix MaxNumBoundingBoxes MixUp RandAugment",
            "runs in RNN, which is here": "GRUCell LSTMCell SimpleRNNCell StackedRNNCells",
        }
    ),
}
_OF_INTEGERS = ("Embedding", "ReversibleEmbedding")


def programs():
    for name in public_layers():
        if name not in LEFT_OUT:
            run = functools.partial(_layer, name)
            yield Program(f"keras.layers/{name}", run, compiled=in_a_quarter(name))


def make(name):
    """A layer."""
    given = dict(ARGUMENTS.get(name, {}))
    for key, value in given.items():
        if callable(value):
            given[key] = value()
    if name in _OF_INTEGERS:
        given = {"input_dim": 12, "output_dim": 16}
    return getattr(keras.layers, name)(**given)


def shape_of(name):
    """The shape of one example of a layer's input."""
    if name in SHAPES:
        return SHAPES[name]
    for ending, shape in (("1D", SEQUENCE), ("2D", IMAGE), ("3D", VOLUME)):
        if ending in name:
            return shape
    return ROWS


def model_of(name):
    """Products, the layer, and a product."""
    shape = shape_of(name)
    inputs = keras.Input(shape, name="x")
    if name in _OF_INTEGERS:
        numbers = keras.ops.clip(keras.ops.abs(inputs) * 4, 0, 11)
        layer = make(name)
        result = layer(keras.ops.cast(numbers, "int32"))
    elif name in INPUTS:
        parts = []
        for index in range(INPUTS[name]):
            before = keras.layers.Dense(shape[-1], name=f"before_{index}")
            parts.append(before(inputs))
        layer = make(name)
        result = layer(*parts) if name in _AS_ARGUMENTS else layer(parts)
    else:
        layer = make(name)
        before = keras.layers.Dense(shape[-1], name="before")
        result = layer(before(inputs))
    flat = keras.layers.Flatten()(result)
    after = keras.layers.Dense(_RESULTS, name="after")
    return keras.Model(inputs, after(flat))


def _layer(name, bench):
    """Forward and gradients, in a hand-written step; the optimizers' programs train with
    ``fit``.
    """
    model = model_of(name)
    shape = shape_of(name)
    start = [bench.given(weight) for weight in model.get_weights()]

    def trained(x, target):
        y = model(x, training=True)
        return {"output": y, "loss": mean_square(y - target) + sum(model.losses)}

    step = bench.step(trained, {_path(each): each for each in model.trainable_variables})
    for case in CASES:
        for _ in range(_DRAWS):
            model.set_weights([np.asarray(value) for value in start])
            x = bench.case(case, _BATCH, *shape)
            target = bench.normal(_BATCH, _RESULTS)
            bench.note_all(case, step(x, target))
            for variable in model.non_trainable_variables:
                if "float" in variable.dtype:
                    bench.note(case, f"state {_path(variable)}", variable.numpy())


def _path(variable):
    return str(variable.path)
