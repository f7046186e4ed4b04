"""Runs versions of a step, batch by batch, without Grappler, which has run already; by XLA if asked for.

Versions run one after another, so that only one has its tensors in memory; only the outputs of float32 are kept for the
next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from amp_tf.comparing import instruments
from amp_tf.comparing.compiled import import_compiled
from amp_tf.comparing.flattening import FlatStep, aligned
from amp_tf.comparing.joining import FLOAT32, feed_name, join, tensor_name
from amp_tf.comparing.randomness import keeping_state
from amp_tf.comparing.steps import UPDATE, Step
from amp_tf.errors import GraphError
from amp_tf.oplists.table import BEGINNINGS, UPDATED_BY, VARIABLE_READERS, WHOLE_WRITES

_CHANGES = np.array([1 - 2.0**-23, 1 + 2.0**-23], np.float32)  #: factors that change a number's last bit, down and up
_AT_ONCE = 2**25  #: bytes of disturbed variables that are set at once


def output_names(step: Step, flat: FlatStep) -> list[tuple[str, str]]:
    """Kind and name of each floating-point result, and of each floating-point variable that the step writes."""
    results = [step.results[number] for number in step.floats]
    return [*results, *((UPDATE, flat.variables[node].name) for node in _written(flat))]


class JointGraph:
    """Several versions of a step in one graph, with a session that feeds them and sets their variables.

    Args:
        step: the step.
        flat: its graph.
        sides: for each side its GraphDef; float32 first.
        compiled: names of the tensors that are wanted, where XLA is to compile the only side; then no other ones are
            there.
    """

    def __init__(self, step: Step, flat: FlatStep, sides: dict[str, Any], compiled: Sequence[str] = ()) -> None:
        import tensorflow as tf

        self._step, self._flat, self._sides = step, flat, list(sides)
        self.graph = tf.Graph()
        with self.graph.as_default():
            joint = join(flat, sides)
            names = [f"{side}/{name}" for side in sides for name in flat.effects]
            self._compiled: dict[str, Any] = {}
            if compiled:
                inputs = [feed_name(FLOAT32, node, flat) for node in (*flat.feeds, *flat.captures, *flat.variables)]
                results = [tensor_name(FLOAT32, name, flat) for name in compiled]
                self._compiled = dict(zip(results, import_compiled(joint, inputs, results, names), strict=True))
            else:
                tf.import_graph_def(joint, name="")
            self._starts = {node: self._start(node) for node in flat.variables}
            self._resets = {node: [self._reset(side, node) for side in sides] for node in flat.variables}
        self._effects = [] if compiled else [self.graph.get_operation_by_name(name) for name in names]
        self._keeps_state = bool(keeping_state(joint))
        self._session: Any = None  # made by a run
        self._writes = bool(_written(flat, of_all=True))
        self._held: bool | None = None  # whether the variables hold disturbed values; None if unknown

    def close(self) -> None:
        """Frees the session's memory; the next run creates another. Idempotent."""
        if self._session is not None:
            self._session.close()
        self._session, self._held = None, None

    def tensor(self, side: str, name: str) -> Any:
        """A tensor of the step, in one version."""
        full_name = tensor_name(side, name, self._flat)
        return self._compiled[full_name] if full_name in self._compiled else self.graph.get_tensor_by_name(full_name)

    def fetch(
        self,
        wanted: Any,
        number: int,
        scale: float,
        *,
        is_disturbed: bool = False,
        is_alone: bool = False,
    ) -> Any:
        """Runs a batch from the variables' initial values.

        Args:
            wanted: what to fetch.
            number: of the batch.
            scale: of the loss, where the step is scaled.
            is_disturbed: whether inputs and variables differ in their last bit.
            is_alone: whether only the fetched tensors are computed: then variables that they do not depend on, such as
                an optimizer's, are not even set.

        Raises:
            GraphError: TensorFlow cannot run the step with this batch.
        """
        import tensorflow as tf

        change = _disturbed if is_disturbed else lambda value: value
        if self._keeps_state:
            self.close()
        if self._session is None:
            self._session = new_session(self.graph)
        try:
            if self._writes or self._held is not is_disturbed:
                chosen = self._variables_behind(wanted) if is_alone else list(self._flat.variables)
                for part in self._parts(chosen):
                    start = {self._starts[node]: change(self._flat.variables[node].value) for node in part}
                    self._session.run([self._resets[node] for node in part], start)
                self._held = is_disturbed if not is_alone else None
            effects = [] if is_alone else self._effects
            return self._session.run((wanted, effects), self._feed(number, scale, change))[0]
        except tf.errors.OpError as error:
            raise GraphError(
                f"a batch cannot be run ({_why(error.message)})",
                where="compare(batches)",
                fix="Call the step with this batch, in float32, to see whether it runs at all",
            ) from error

    def read(self, wanted: Any) -> Any:
        """Fetches tensors that depend on variables only, such as their values after a batch."""
        return self._session.run(wanted)

    def _parts(self, chosen: Sequence[str]) -> list[list[str]]:
        """Splits variables into groups whose disturbed copies fit into little memory."""
        parts: list[list[str]] = [[]]
        waiting = 0
        for node in chosen:
            waiting += self._flat.variables[node].value.nbytes
            if waiting > _AT_ONCE and parts[-1]:
                parts.append([])
                waiting = self._flat.variables[node].value.nbytes
            parts[-1].append(node)
        return parts

    def _variables_behind(self, wanted: Any) -> list[str]:
        """The variables that some tensors depend on, by values or by control edges, in any version."""
        import tensorflow as tf

        waiting = [tensor.op for tensor in tf.nest.flatten(wanted)]
        found = set(waiting)
        while waiting:
            operation = waiting.pop()
            fresh = {*(tensor.op for tensor in operation.inputs), *operation.control_inputs} - found
            found |= fresh
            waiting += fresh
        names = {operation.name for operation in found}
        return [node for node in self._flat.variables if any(f"{side}/{node}" in names for side in self._sides)]

    def _feed(self, number: int, scale: float, change: Any) -> dict[str, Any]:
        values = [*self._step.batches[number], *([np.float32(scale)] if self._step.is_scaled else [])]
        given = {**dict(zip(self._flat.feeds, values, strict=True)), **self._flat.captures}
        names = {node: f"{feed_name(FLOAT32, node, self._flat)}:0" for node in given}
        return {names[node]: change(value) if value.ndim else value for node, value in given.items()}

    def _start(self, node: str) -> Any:
        import tensorflow as tf

        variable = self._flat.variables[node]
        return tf.compat.v1.placeholder(tf.as_dtype(variable.data_type), variable.value.shape)

    def _reset(self, side: str, node: str) -> Any:
        import tensorflow as tf

        if self._flat.variables[node].is_reference:
            return tf.raw_ops.Assign(ref=self.tensor(side, node), value=self._starts[node]).op
        return tf.raw_ops.AssignVariableOp(resource=self.tensor(side, node), value=self._starts[node])


class RunnableStep:
    """One version of a step, in a graph and a session of its own.

    Args:
        step: the step.
        flat: its graph.
        graph: the version's GraphDef.
        is_compiled: whether XLA compiles it.
    """

    def __init__(self, step: Step, flat: FlatStep, graph: Any, *, is_compiled: bool = False) -> None:
        self._flat = flat
        import tensorflow as tf

        results = [flat.results[number] for number in step.floats]
        self._joint = JointGraph(step, flat, {FLOAT32: graph}, results if is_compiled else ())
        self._results = [self._joint.tensor(FLOAT32, name) for name in results]
        changes = {} if is_compiled else _changes(flat)
        self._changed = [node for node in _written(flat) if node in changes]
        self._written = [node for node in _written(flat) if node not in changes]
        self._order = [[*self._changed, *self._written].index(node) for node in _written(flat)]
        with self._joint.graph.as_default():
            self._variables = [_read(self._joint.tensor(FLOAT32, node)) for node in self._written]
            for node in self._changed:
                name, place = changes[node]
                operation = self._joint.graph.get_operation_by_name(f"{FLOAT32}/{name}")
                self._results.append(tf.cast(operation.inputs[place], tf.float32))

    def run(self, number: int, scale: float, *, is_disturbed: bool = False) -> list[np.ndarray]:
        """The outputs, in the order of :func:`output_names`; arguments as for :meth:`JointGraph.fetch`."""
        results = self._joint.fetch(self._results, number, scale, is_disturbed=is_disturbed)
        change = _disturbed if is_disturbed else lambda value: value
        after = zip(self._written, self._joint.read(self._variables), strict=True)
        count = len(results) - len(self._changed)
        updates = [*results[count:], *(value - change(self._flat.variables[node].value) for node, value in after)]
        return [*results[:count], *(updates[place] for place in self._order)]

    def close(self) -> None:
        """Frees the session's memory; the next run creates another. Idempotent."""
        self._joint.close()


class Ruler:
    """Measures how outputs differ from the true ones.

    Args:
        smallest: the smallest positive number of the 16-bit type.
    """

    def __init__(self, smallest: float) -> None:
        import tensorflow as tf

        self._smallest = smallest
        self._graph = tf.Graph()
        self._session = new_session(self._graph)
        self._ends: dict[Any, tuple[Any, Any, Any, Any]] = {}

    def measure(self, found: Sequence[np.ndarray], truth: Sequence[np.ndarray], kinds: Sequence[str]) -> np.ndarray:
        """A row for each output, shape (outputs, columns).

        Args:
            found, truth: the outputs.
            kinds: of the outputs. Of updates each number that is zero and not in the truth counts as underflown:
                optimizers make large numbers of small ones.
        """
        outputs = zip(found, truth, kinds, strict=True)
        return np.stack([self._row(value, right, kind == UPDATE) for value, right, kind in outputs])

    def _row(self, value: np.ndarray, truth: np.ndarray, is_update: bool) -> np.ndarray:
        of_value, of_truth, quick, thorough = self._of(value.dtype, is_update)
        feed = {of_value: value, of_truth: truth.astype(np.float32, copy=False)}
        row = self._session.run(quick, feed)
        return instruments.settled(row) if instruments.is_enough(row) else self._session.run(thorough, feed)

    def _of(self, dtype: Any, is_update: bool) -> tuple[Any, Any, Any, Any]:
        import tensorflow as tf

        if (dtype, is_update) not in self._ends:
            smallest = float("inf") if is_update else self._smallest
            with self._graph.as_default():
                ends = tf.compat.v1.placeholder(dtype, None), tf.compat.v1.placeholder(tf.float32, None)
                quick = instruments.quick_row(*ends, smallest)
                self._ends[dtype, is_update] = (*ends, quick, instruments.thorough_row(*ends, smallest))
        return self._ends[dtype, is_update]


def _why(message: str) -> str:
    """TensorFlow's message, without the frame that it puts around errors in graphs."""
    message = message.removeprefix("Graph execution error:")
    _, framed, said = message.rpartition("\nNode:")  # its name, and then what happened
    lines = [line for line in said.splitlines()[bool(framed) :] if line.strip()]
    return (lines or [message])[0].strip().rstrip(".")


def new_session(graph: Any) -> Any:
    """A session that does not optimize its graph."""
    import tensorflow as tf
    from tensorflow.core.protobuf import config_pb2

    config = config_pb2.ConfigProto(allow_soft_placement=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = config_pb2.OptimizerOptions.L0
    return tf.compat.v1.Session(graph=graph, config=config)


def _read(variable: Any) -> Any:
    """The value of a float32 variable."""
    import tensorflow as tf

    if variable.dtype != tf.resource:
        return tf.identity(variable)
    return tf.raw_ops.ReadVariableOp(resource=variable, dtype=tf.float32)


def _changes(flat: FlatStep) -> dict[str, tuple[str, int]]:
    """For each variable that is written once: the node that changes it, and which input of it is the change.

    That is a gradient, perhaps times a rate: where the rate is 1e-9, nothing of it is seen in the variable. Behind
    branches and in loops a tensor cannot be fetched, so there variables are compared.
    """
    from tensorflow.python.framework import op_def_registry

    nodes = {node.name: node for node in flat.graph.node}
    if any(node.op in BEGINNINGS for node in flat.graph.node):
        return {}
    writes: dict[str, list[Any]] = {}
    for node in flat.graph.node:
        first = node.input[0].partition(":")[0] if node.input else ""
        if first in flat.variables and node.op not in VARIABLE_READERS:
            writes.setdefault(first, []).append(node)
    found = {}
    for variable, (write, *others) in writes.items():
        if write.op in WHOLE_WRITES:  # variable.assign(variable - change)
            write = nodes[write.input[1].partition(":")[0]]
            before = nodes.get(write.input[0].partition(":")[0]) if write.op in UPDATED_BY else None
            reads = before is not None and [*before.input[:1]] == [variable]
            place = 1 if reads else None
        else:
            arguments = getattr(op_def_registry.get(write.op), "input_arg", ())
            names = [argument.name for argument in arguments]
            place = next((names.index(name) for name in ("grad", "delta", "value") if name in names), None)
        if place is not None and not others:
            found[variable] = write.name, place
    return found


def _written(flat: FlatStep, *, of_all: bool = False) -> list[str]:
    """The float32 variables, or all of them, that have readers other than plain reads."""
    used = {
        text.partition(":")[0]
        for node in flat.graph.node
        if node.op not in VARIABLE_READERS
        for place, text in enumerate(node.input)
        if not (text in flat.variables and flat.variables[text].is_reference and not _takes_reference(node.op, place))
    }
    return [
        node for node, kept in flat.variables.items() if node in used and (of_all or kept.value.dtype == np.float32)
    ]


def _takes_reference(op: str, place: int) -> bool:
    """Whether an input of an op is a reference, through which the op may write a TF1 variable."""
    from tensorflow.python.framework import op_def_registry

    arguments = getattr(op_def_registry.get(op), "input_arg", ())
    return place < len(arguments) and arguments[place].is_ref


def _disturbed(value: np.ndarray) -> np.ndarray:
    """The same numbers with the last bit of each float32 changed, up or down; whole numbers, such as masks, stay."""
    if value.dtype != np.float32:
        return value
    random = np.frombuffer(np.random.default_rng(value.size).bytes(-(-value.size // 8)), np.uint8)
    is_up = np.unpackbits(random, count=value.size).reshape(value.shape)
    changed = np.multiply(value, _CHANGES[is_up], out=np.empty_like(value))
    np.copyto(changed, value, where=value == np.rint(value))
    found: np.ndarray = aligned(changed)
    return found
