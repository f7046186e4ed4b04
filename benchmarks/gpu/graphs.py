"""The graphs that Grappler is given: training steps of Keras 3 without XLA, of tf_keras and of TF1.

A program that does not ask for XLA gets it from Keras 3 on a GPU, but not for LSTM and GRU layers,
which call cuDNN there: they are here as such calls, and as the loops that they are where cuDNN
cannot be used (with a recurrent dropout, with XLA).
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

from benchmarks.gpu import steps
from benchmarks.gpu.cases import CASES
from benchmarks.models import Workload, wide

Made = tuple[Any, list[str]]
"""A GraphDef, and the nodes that are wanted of it."""


@dataclasses.dataclass(frozen=True)
class Graph:
    """One training step.

    Attributes:
        title: what tables call it.
        make: makes it, with the loss scaling ``"keras"``, ``"amp_tf"`` or ``None``.
        has_policy: whether there is a Keras policy for it.
    """

    title: str
    make: Callable[[str | None], Made]
    has_policy: bool = True


def _keras3(name: str, *, has_cudnn: bool = False) -> Callable[[str | None], Made]:
    def make(loss_scaling: str | None) -> Made:
        workload = CASES[name].workload("tiny")
        workload.keras.utils.set_random_seed(0)
        _say_that_a_gpu_is_there(has_cudnn)
        model, optimizer = workload.model(), steps.optimizer(workload, loss_scaling)
        optimizer.build(model.trainable_variables)
        step = steps.step(workload, model, optimizer, jit_compile=False)
        return _made(step.get_concrete_function(*steps.specs(workload, workload.batch)))

    return make


def _say_that_a_gpu_is_there(is_there: bool) -> None:
    """What Keras 3 asks before its recurrent layers call cuDNN."""
    module: Any = importlib.import_module(
        "keras.src.backend.tensorflow.rnn"
    )  # the package has a function of this name
    module._is_gpu_available = lambda: is_there


def _tf_keras(name: str) -> Callable[[str | None], Made]:
    def make(loss_scaling: str | None) -> Made:
        import tensorflow as tf

        workload: Workload = wide.MODELS[name].workload()
        model, optimizer = workload.model(), steps.optimizer(workload, loss_scaling)
        model.compile(optimizer, workload.loss)

        @tf.function
        def step(x: Any, y: Any) -> Any:
            return model.train_step((x, y))

        return _made(step.get_concrete_function(*steps.specs(workload, 4)))

    return make


def _tf1(loss_scaling: str | None) -> Made:
    """Two convolutions with fused batch normalization and a product, as TF1 programs write them."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        x, y = v1.placeholder(tf.float32, (8, 32, 32, 3)), v1.placeholder(tf.int32, (8,))
        for number, (before, channels) in enumerate(((3, 32), (32, 64))):
            with v1.variable_scope(f"layer_{number}"):
                x = tf.nn.conv2d(x, v1.get_variable("filter", (3, 3, before, channels)), 2, "SAME")
                scale, offset = (v1.get_variable(name, (channels,)) for name in ("scale", "offset"))
                x = tf.nn.relu(v1.nn.fused_batch_norm(x, scale, offset)[0])
        logits = tf.reduce_mean(x, (1, 2)) @ v1.get_variable("kernel", (64, 10))
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        )
        train = steps.v1_optimizer(loss_scaling).minimize(loss)
    return graph.as_graph_def(), [train.name, loss.op.name]


def _made(concrete: Any) -> Made:
    operations = (
        *(tensor.op for tensor in concrete.graph.outputs),
        *concrete.graph.control_outputs,
    )
    return concrete.graph.as_graph_def(), [operation.name for operation in operations]


GRAPHS = {
    **{name: Graph(case.title, _keras3(name)) for name, case in CASES.items()},
    "gnmt_cudnn": Graph("GNMT LSTM by cuDNN", _keras3("gnmt", has_cudnn=True)),
    "gru_cudnn": Graph("GRU language model by cuDNN", _keras3("gru", has_cudnn=True)),
    "tf_keras_convnet": Graph("tf_keras convnet", _tf_keras("tf_keras_convnet")),
    "tf_keras_lstm": Graph("tf_keras LSTM", _tf_keras("tf_keras_lstm")),
    "tf1_convnet": Graph("TF1 convnet", _tf1, has_policy=False),
}
