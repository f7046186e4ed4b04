"""TensorFlow's meta optimizer over a training step, as for GPUs that are not there."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

GPU = "/job:localhost/replica:0/task:0/device:GPU:0"
CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


def optimize(graph: Any, ends: Iterable[str], capability: str) -> Any:
    """Runs TensorFlow's graph optimizers, plugins included, over a graph.

    Args:
        graph: a GraphDef whose nodes have devices.
        ends: the nodes that are wanted.
        capability: the compute capability of the GPU, such as ``"7.0"``.
    """
    from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
    from tensorflow.python.grappler import tf_optimizer

    meta_graph = meta_graph_pb2.MetaGraphDef(graph_def=graph)
    meta_graph.collection_def["train_op"].node_list.value.extend(
        ends
    )  # by which Grappler knows what is wanted
    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1  # small graphs too
    return tf_optimizer.OptimizeGraph(
        config, meta_graph, verbose=False, cluster=_cluster(capability)
    )


def pretend(capability: str) -> None:
    """Makes amp_tf see a GPU of this compute capability, as it would on a machine with one."""
    from amp_tf.hooks import state
    from amp_tf.oplists.hardware import Hardware

    major, minor = map(int, capability.split("."))
    seen = dataclasses.replace(Hardware.detect_cpu(), gpu_capabilities=((major, minor),))
    state.hardware = lambda: seen


def every_node(graph: Any) -> Iterator[Any]:
    return itertools.chain(graph.node, *(function.node_def for function in graph.library.function))


def _cluster(capability: str) -> Any:
    """A machine with one GPU. Its figures, a V100's, go into TensorFlow's cost estimates alone."""
    from tensorflow.core.protobuf import device_properties_pb2 as devices
    from tensorflow.python.grappler import cluster

    gpu = devices.DeviceProperties(
        type="GPU",
        vendor="NVIDIA",
        environment={"architecture": capability, "cuda": "12090", "cudnn": "9100"},
        frequency=1380,
        num_cores=80,
        num_registers=65_536,
        l1_cache_size=24_576,
        l2_cache_size=6_291_456,
        shared_memory_size_per_multiprocessor=98_304,
        memory_size=16 << 30,
        bandwidth=898_048_000,
    )
    cpu = devices.DeviceProperties(type="CPU", frequency=2000, num_cores=8, memory_size=8 << 30)
    named = [
        devices.NamedDevice(name=name, properties=what) for name, what in ((GPU, gpu), (CPU, cpu))
    ]
    return cluster.Cluster(devices=named)
