"""Training graphs of real models in the form in which Grappler's AMP pass meets them: calls inlined, loops lowered.

A training step (loss, gradients, an update) is traced as a tf.function; TensorFlow's own function optimizer then
inlines the calls and turns While and If into Enter, Merge, Switch …, and the pruner drops what nobody needs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import keras
import numpy as np
import tensorflow as tf
from keras.src.applications import densenet  # the public name has none that is smaller than 121 layers

from tests.oracle import optimized

GraphDef = tf.compat.v1.GraphDef
Step = Callable[..., tf.Tensor]
# Sums, concatenations, gates and depthwise filters, and layer normalization.
APPLICATIONS = {
    "DenseNet": functools.partial(densenet.DenseNet, [2, 2, 2, 2]),
    "MobileNetV3Small": keras.applications.MobileNetV3Small,
    "ConvNeXtTiny": keras.applications.ConvNeXtTiny,
}


@dataclasses.dataclass(frozen=True)
class TrainingGraph:
    """A lowered training graph and the nodes that are preserved: results and updates."""

    graph_def: GraphDef
    preserve: tuple[str, ...]


def training_graph(name: str) -> TrainingGraph:
    """The training graph of a model by its name: one of APPLICATIONS or of MODELS."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    if name in MODELS:
        return MODELS[name]()
    return application(name, 32, adam=name == "MobileNetV3Small")  # shapes matter to the time that tracing takes alone


def application(name: str, side: int, *, adam: bool, classes: int = 10) -> TrainingGraph:
    """The training graph of one of APPLICATIONS for square images."""
    model = APPLICATIONS[name](weights=None, input_shape=(side, side, 3), classes=classes, classifier_activation=None)
    return lowered(*train_step(model, tf.TensorSpec([2, side, side, 3]), adam=adam))


def train_step(model: keras.Model, *inputs: tf.TensorSpec, labels: tuple[int, ...] = (2,), adam: bool = True):
    """A training step as a tf.function of labels and inputs, and the TensorSpecs to trace it with."""
    # Adam's update is 20 nodes a variable, always the same ones: a plain update saves half of the time of tracing.
    optimizer = keras.optimizers.Adam(1e-3) if adam else keras.optimizers.SGD(1e-3)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=False)
    def step(label, *features):
        with tf.GradientTape() as tape:
            loss = loss_of(label, model(features[0] if len(features) == 1 else features, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return step, (tf.TensorSpec(labels, tf.int32), *inputs)


def lowered(step, specs, optimizers: tuple[str, ...] = ("function", "pruning")) -> TrainingGraph:
    """The graph of a tf.function after Grappler optimizers; its results and updates are preserved."""
    graph = step.get_concrete_function(*specs).graph
    preserve = (*(x.op.name for x in graph.outputs), *(op.name for op in graph.control_outputs))
    graph_def = optimized(graph.as_graph_def(), optimizers, preserve)
    names = {node.name for node in graph_def.node}
    return TrainingGraph(graph_def, tuple(name for name in dict.fromkeys(preserve) if name in names))


def encoder(*, layers: int, width: int, heads: int, vocabulary: int = 100, length: int = 8) -> keras.Model:
    """A BERT-like encoder with a classifier on the first token."""
    tokens = keras.Input([length], dtype="int32")
    x = keras.layers.Embedding(vocabulary, width)(tokens)
    for _ in range(layers):
        x = _attend(x, x, width, heads)
        x = _feed_forward(x, width)
    return keras.Model(tokens, keras.layers.Dense(10)(x[:, 0]))


def transformer_decoder() -> TrainingGraph:
    tokens, memory = keras.Input([8], dtype="int32"), keras.Input([6, 32])
    x = keras.layers.Embedding(100, 32)(tokens)
    for _ in range(2):
        x = _attend(x, x, 32, 2, use_causal_mask=True)
        x = _attend(x, memory, 32, 2)
        x = _feed_forward(x, 32)
    model = keras.Model([tokens, memory], keras.layers.Dense(10)(x))
    return lowered(*train_step(model, tf.TensorSpec([2, 8], tf.int32), tf.TensorSpec([2, 6, 32]), labels=(2, 8)))


def _attend(x, memory, width: int, heads: int, **options):
    attention = keras.layers.MultiHeadAttention(heads, width // heads, dropout=0.1)
    return keras.layers.LayerNormalization()(x + attention(x, memory, **options))


def _feed_forward(x, width: int):
    y = keras.layers.Dense(width)(keras.layers.Dense(4 * width, activation="gelu")(x))
    return keras.layers.LayerNormalization()(x + keras.layers.Dropout(0.1)(y))


def lstm_stack() -> TrainingGraph:
    layers = keras.layers
    stack = [keras.Input([6, 8]), layers.LSTM(16, return_sequences=True), layers.LSTM(16), layers.Dense(10)]
    return lowered(*train_step(keras.Sequential(stack), tf.TensorSpec([2, 6, 8])))


def u_net() -> TrainingGraph:
    layers = keras.layers
    image = keras.Input([32, 32, 3])

    def block(x, width):
        for _ in range(2):
            x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(x)))
        return x

    first = block(image, 8)
    second = block(layers.MaxPooling2D()(first), 16)
    x = block(layers.MaxPooling2D()(second), 32)
    x = block(layers.Concatenate()([layers.Conv2DTranspose(16, 2, 2)(x), second]), 16)
    x = block(layers.Concatenate()([layers.UpSampling2D(interpolation="bilinear")(x), first]), 8)
    model = keras.Model(image, layers.Conv2D(10, 1)(x))
    return lowered(*train_step(model, tf.TensorSpec([2, 32, 32, 3]), labels=(2, 32, 32)))


def custom_loop() -> TrainingGraph:
    """A hand-written step: a while loop whose length depends on data, a branch, a list, gradient clipping."""
    rng = np.random.default_rng(0)
    w = tf.Variable(rng.normal(size=(8, 8)).astype(np.float32) / 8)
    v = tf.Variable(rng.normal(size=(8, 4)).astype(np.float32) / 8)

    @tf.function(jit_compile=False)
    def step(label, x):
        with tf.GradientTape() as tape:
            states, i = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[2, 8]), 0
            while tf.reduce_sum(tf.abs(x)) > 1.0 and i < 5:
                x = tf.nn.relu(tf.matmul(x, w)) + 0.1 * x
                states, i = states.write(i, x), i + 1
            logits = tf.matmul(tf.reduce_mean(states.stack(), 0) if i > 0 else x, v)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits))
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, [w, v]), 1.0)
        for variable, gradient in zip((w, v), gradients, strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    return lowered(step, (tf.TensorSpec([2], tf.int32), tf.TensorSpec([2, 8])))


MODELS: Mapping[str, Callable[[], TrainingGraph]] = {
    "transformer_decoder": transformer_decoder,
    "lstm_stack": lstm_stack,
    "u_net": u_net,
    "custom_loop": custom_loop,
}
