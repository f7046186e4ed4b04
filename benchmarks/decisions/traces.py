"""Graphs as amp_tf's plugin is given them, for CPUs with oneDNN and for GPUs, on any host.

A step of Keras' own is traced and goes through TensorFlow's graph optimizers, with a plugin that
keeps what it is given: graph, preserved nodes and static shapes. TensorFlow is told that oneDNN is
on and computes bfloat16, which decides what its remapper fuses.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import virtual
from benchmarks.models import BENCHMARKS, Workload, benchmark, wide
from benchmarks.models.blocks import BLOCKS

WAYS = ("fit", "predict")
DEVICES = ("CPU", "GPU")
_CAPABILITY = "9.0"

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """One graph, by which is found again what was read of it.

    Attributes:
        graph: a serialized GraphDef.
        preserve: the nodes that stay as they are.
        shapes: of each node's output ports, by name, as far as they are known.
    """

    graph: bytes
    preserve: frozenset[str]
    shapes: dict[str, list[Shape | None]]

    def output_shapes(self, node: str) -> Sequence[Shape | None]:
        """The shapes of a node, as ``amp_tf.graph.sizes.Shapes`` has them."""
        return self.shapes.get(node, ())


def names() -> list[str]:
    """Every model of ``benchmarks.models``, and every block."""
    return [*BENCHMARKS, *wide.MODELS, *BLOCKS]


def path_of(folder: Path, name: str, way: str, device: str) -> Path:
    """The file of a trace."""
    return folder / f"{name}-{way}-{device}.trace"


def read(path: Path) -> Trace:
    """A trace that :func:`make` kept."""
    return Trace(*pickle.loads(path.read_bytes()))


def make(name: str, ways: Sequence[str], devices: Sequence[str], folder: Path) -> None:
    """Keeps the traces of one model or block that are not there yet."""
    for way in ways:
        paths = {device: path_of(folder, name, way, device) for device in devices}
        missing = [device for device, path in paths.items() if not path.exists()]
        if missing:
            concrete = step(name, way)
            for device in missing:
                found = optimized(concrete, device)
                temporary = paths[device].with_suffix(".part")
                temporary.write_bytes(pickle.dumps((found.graph, found.preserve, found.shapes)))
                temporary.rename(paths[device])


def step(name: str, way: str, *, jit_compile: bool = False) -> Any:
    """A step of Keras' own as a concrete function: of training with Adam, or of inference."""
    import tensorflow as tf

    workload = BLOCKS[name] if name in BLOCKS else benchmark(name).workload("small")
    keras = workload.keras
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    model = workload.model()
    one_step = model.predict_step
    if way == "fit":
        optimizer = workload.optimizer()
        model.compile(optimizer=optimizer, loss=workload.loss, jit_compile=False)
        optimizer.build(model.trainable_variables)
        one_step = model.train_step

    @tf.function(jit_compile=jit_compile)
    def run(batches: Any) -> Any:
        return one_step(next(batches))

    x, y = _specs(workload)
    return run.get_concrete_function(tf.data.IteratorSpec((x, y) if way == "fit" else (x,)))


def optimized(concrete: Any, device: str) -> Trace:
    """Traces the graph that the plugin is given for a concrete function on a device type."""
    graph = concrete.graph.as_graph_def()
    ends = [tensor.op.name for tensor in concrete.graph.outputs]
    ends += [operation.name for operation in concrete.graph.control_outputs]
    arguments = _as_arguments(graph, concrete.graph.inputs)
    for node in virtual.every_node(graph):
        node.device = virtual.GPU if device == "GPU" else virtual.CPU
    from tests.as_cpu import onednn

    with _capturing() as captured, onednn.told(bfloat16=True):
        virtual.optimize(graph, dict.fromkeys(ends), _CAPABILITY)
    found = captured[0]
    return dataclasses.replace(found, preserve=found.preserve | arguments & found.shapes.keys())


def _as_arguments(graph: Any, inputs: Sequence[Any]) -> frozenset[str]:
    """Turns the placeholders of a function's inputs into arguments, as TensorFlow's runtime does.

    TensorFlow trusts no shape of a placeholder, because it is fed.

    Returns:
        Their names.
    """
    from tensorflow.python.ops.handle_data_util import get_resource_handle_data

    numbers = {tensor.op.name: number for number, tensor in enumerate(inputs)}
    for node in graph.node:
        if node.name in numbers:
            tensor = inputs[numbers[node.name]]
            node.op = "_Arg"
            node.attr.clear()
            node.attr["T"].type = tensor.dtype.as_datatype_enum
            node.attr["index"].i = numbers[node.name]
            if tensor.dtype.name != "resource":
                continue
            for held in get_resource_handle_data(tensor).shape_and_type:
                node.attr["_handle_dtypes"].list.type.append(held.dtype)
                node.attr["_handle_shapes"].list.shape.add().CopyFrom(held.shape)
    return frozenset(numbers)


@contextlib.contextmanager
def _capturing() -> Iterator[list[Trace]]:
    """Collects what the plugin is given, the graph itself first and then its functions; nothing is
    changed.
    """
    from amp_tf.graph.protos import parse_graph
    from amp_tf.hooks import plugin

    found: list[Trace] = []

    def keep(graph: bytes, preserve: frozenset[str], shapes: Any) -> None:
        known = {}
        for node in parse_graph(graph).node:
            known[node.name] = list(shapes.output_shapes(node.name))
        found.append(Trace(graph, preserve, known))

    plugin.set_conversion(keep)
    try:
        yield found
    finally:
        plugin.uninstall()


def _specs(workload: Workload) -> tuple[Any, Any]:
    """The specs of a step's inputs, one tensor or several, and of its target."""
    import tensorflow as tf

    def spec(sample: Any) -> Any:
        return tf.TensorSpec((workload.batch, *sample.shape[1:]), sample.dtype)

    return tf.nest.map_structure(spec, workload.data(4, 0))
