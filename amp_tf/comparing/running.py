"""Runs the joint graph over the batches, as it stands: without Grappler, whose work is done, and without XLA."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from amp_tf.comparing import instruments
from amp_tf.comparing.flattening import FlatStep
from amp_tf.comparing.instruments import Statistics
from amp_tf.comparing.joining import AMP, FLOAT32, NOISE, feed_name, join, tensor_name
from amp_tf.comparing.probes import Probe, probe
from amp_tf.comparing.steps import UPDATE, Step
from amp_tf.errors import GraphError
from amp_tf.oplists.table import VARIABLE_READERS
from amp_tf.precision import Precision

_LAST_BIT = 2.0**-23


@dataclasses.dataclass(frozen=True)
class Looked:
    """What was measured at one node.

    Attributes:
        probe: the node.
        accumulated: its result in the run against float32's.
        local: its result in 16 bit on exact inputs against float32's; ``None`` where it has none.
        largest_input: the largest size of a number of its inputs in float32.
    """

    probe: Probe
    accumulated: Statistics
    local: Statistics | None
    largest_input: float


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one run of all batches says.

    Attributes:
        outputs: for each side but float32 the statistics of each output, as :func:`output_names` names them.
        nodes: the nodes that were looked at, sources before their readers.
    """

    outputs: Mapping[str, Sequence[Statistics]]
    nodes: Sequence[Looked] = ()


def output_names(step: Step, flat: FlatStep) -> list[tuple[str, str]]:
    """Kind and name of each floating-point result, and of each floating-point variable that the step writes."""
    results = [step.results[number] for number in _float_results(step)]
    return [*results, *((UPDATE, flat.variables[node].name) for node in _written(flat))]


class JointRun:
    """One joint graph with its instruments.

    Args:
        step: the step.
        flat: its graph.
        sides: for each side its GraphDef; float32 first.
        precision: the 16-bit type.
        wanted: a regular expression for nodes to be looked at besides.
        has_probes: whether nodes are looked at, and not only outputs.
    """

    def __init__(
        self,
        step: Step,
        flat: FlatStep,
        sides: Mapping[str, Any],
        precision: Precision,
        *,
        wanted: str | None = None,
        has_probes: bool = False,
    ) -> None:
        import tensorflow as tf

        self._step, self._flat = step, flat
        self._sides = list(sides)
        self._smallest = precision.smallest
        self._graph = tf.Graph()
        with self._graph.as_default():
            tf.import_graph_def(join(flat, sides), name="")
            self._probes = probe(flat, sides[AMP], self._graph, wanted) if has_probes else []
            self._resets = {(side, node): self._reset(side, node) for side in sides for node in flat.variables}
            self._of_outputs = {side: self._measure_results(side) for side in self._sides[1:]}
            self._of_updates = {side: self._measure_updates(side) for side in self._sides[1:]}
            self._of_nodes = self._measure_nodes()

    def run(self, scale: float, limit: int | None = None) -> Measured:
        """Runs the batches, each from the variables' present values.

        Args:
            scale: of the loss, where the step is scaled.
            limit: how many batches; all by default.

        Raises:
            GraphError: TensorFlow cannot run the step with a batch.
        """
        import tensorflow as tf

        with tf.compat.v1.Session(graph=self._graph, config=_as_it_stands()) as session:
            try:
                rows = [self._run_batch(session, batch, scale) for batch in self._step.batches[:limit]]
            except tf.errors.OpError as error:
                raise GraphError(
                    f"a batch cannot be run ({_why(error.message)})",
                    where="compare(batches)",
                    fix="Call the step with this batch, in float32, to see whether it runs at all",
                ) from error
        outputs = {side: _pool([of_outputs[side] for of_outputs, _ in rows]) for side in self._sides[1:]}
        return Measured(outputs, list(self._looked([of_nodes for _, of_nodes in rows])))

    def _run_batch(self, session: Any, batch: Sequence[np.ndarray], scale: float) -> tuple[Any, Any]:
        start = {placeholder: value for placeholder, value, _ in self._start()}
        session.run([reset for _, _, reset in self._start()], start)
        effects = [self._graph.get_operation_by_name(f"{s}/{name}") for s in self._sides for name in self._flat.effects]
        found, of_nodes, _ = session.run((self._of_outputs, self._of_nodes, effects), self._feed(batch, scale))
        updates = session.run(self._of_updates, start)
        return {side: np.concatenate([found[side], updates[side]]) for side in found}, of_nodes

    def _start(self) -> Iterator[tuple[Any, np.ndarray, Any]]:
        """For each variable of each side the placeholder, the value with which it starts, and the op that sets it."""
        for (side, node), (placeholder, reset) in self._resets.items():
            value = self._flat.variables[node].value
            yield placeholder, _disturbed(value) if side == NOISE else value, reset

    def _feed(self, batch: Sequence[np.ndarray], scale: float) -> dict[str, Any]:
        values = [*batch, *([np.float32(scale)] if self._step.is_scaled else [])]
        given = {**dict(zip(self._flat.feeds, values, strict=True)), **self._flat.captures}
        feed = {}
        for node, value in given.items():
            feed[f"{feed_name(FLOAT32, node, self._flat)}:0"] = value
            if NOISE in self._sides:
                feed[f"{feed_name(NOISE, node, self._flat)}:0"] = _disturbed(value) if value.ndim else value
        return feed

    def _tensor(self, side: str, name: str) -> Any:
        return self._graph.get_tensor_by_name(tensor_name(side, name, self._flat))

    def _reset(self, side: str, node: str) -> tuple[Any, Any]:
        import tensorflow as tf

        variable = self._flat.variables[node]
        value = tf.compat.v1.placeholder(tf.as_dtype(variable.data_type), variable.value.shape)
        return value, tf.raw_ops.AssignVariableOp(resource=self._tensor(side, node), value=value)

    def _measure_results(self, side: str) -> Any:
        names = [self._flat.results[number] for number in _float_results(self._step)]
        pairs = [(self._tensor(side, name), self._tensor(FLOAT32, name)) for name in names]
        return instruments.stack([instruments.measure(*pair, self._smallest) for pair in pairs])

    def _measure_updates(self, side: str) -> Any:
        def change(of: str, node: str) -> Any:
            import tensorflow as tf

            before = self._resets[of, node][0]
            return tf.raw_ops.ReadVariableOp(resource=self._tensor(of, node), dtype=before.dtype) - before

        pairs = [(change(side, node), change(FLOAT32, node)) for node in _written(self._flat)]
        return instruments.stack([instruments.measure(*pair, self._smallest) for pair in pairs])

    def _measure_nodes(self) -> Any:
        import tensorflow as tf

        rows, inputs = [], []
        for found in self._probes:
            rows.append(instruments.measure(found.value, found.truth, self._smallest))
            local = found.truth if found.local is None else found.local
            rows.append(instruments.measure(local, found.truth, self._smallest))
            sizes = [tf.reduce_max(tf.abs(tf.cast(tensor, tf.float32))) for tensor in found.inputs]
            inputs.append(tf.reduce_max(tf.stack([tf.constant(0.0), *sizes])))
        return instruments.stack(rows), tf.stack(inputs) if inputs else tf.zeros([0])

    def _looked(self, rows: Sequence[Any]) -> Iterator[Looked]:
        pooled = _pool([row for row, _ in rows])
        inputs = np.max([found for _, found in rows], axis=0)
        for number, found in enumerate(self._probes):
            accumulated, local = pooled[2 * number : 2 * number + 2]
            yield Looked(found, accumulated, None if found.local is None else local, float(inputs[number]))


def _why(message: str) -> str:
    """What TensorFlow says, without the frame that it puts around an error in a graph."""
    _, framed, said = message.rpartition("\nNode:")  # its name, and then what happened
    lines = [line for line in said.splitlines()[bool(framed) :] if line.strip()]
    return (lines or [message])[0].strip().rstrip(".")


def _as_it_stands() -> Any:
    """Options by which TensorFlow runs a graph without changing it."""
    from tensorflow.core.protobuf import config_pb2

    config = config_pb2.ConfigProto(allow_soft_placement=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = config_pb2.OptimizerOptions.L0
    return config


def _pool(rows: Sequence[np.ndarray]) -> list[Statistics]:
    return [Statistics.of(row) for row in np.stack(rows, axis=1)]


def _float_results(step: Step) -> list[int]:
    return [number for number, result in enumerate(step.function.outputs) if result.dtype.is_floating]


def _written(flat: FlatStep) -> list[str]:
    """The floating-point variables that something else than a read gets."""
    used = {
        text.partition(":")[0] for node in flat.graph.node if node.op not in VARIABLE_READERS for text in node.input
    }
    return [node for node, variable in flat.variables.items() if node in used and variable.value.dtype == np.float32]


def _disturbed(value: np.ndarray) -> np.ndarray:
    """The same numbers, with the last bit of each float32 changed, up or down; whole ones, such as masks, are exact."""
    if value.dtype != np.float32:
        return value
    signs = np.random.default_rng(value.size).choice([-1.0, 1.0], value.shape)
    return np.where(value == np.rint(value), value, value * (1 + signs * _LAST_BIT)).astype(np.float32)
