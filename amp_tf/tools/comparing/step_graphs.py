"""Runs versions of a step, batch by batch, without Grappler, which has run already; by XLA if asked for.

Versions run one after another, so that only one has its tensors in memory; only the outputs of float32 are kept for the
next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from amp_tf.oplists.table import BEGINNINGS, UPDATED_BY, VARIABLE_READERS, WHOLE_WRITES
from amp_tf.tools.comparing import verdicts
from amp_tf.tools.comparing.flattening import UPDATE, FlatStep, Step
from amp_tf.tools.comparing.joining import FLOAT32, JointGraph, disturbed, new_session, written


def output_names(step: Step, flat: FlatStep) -> list[tuple[str, str]]:
    """Kind and name of each floating-point result, and of each floating-point variable that the step writes."""
    results = [step.results[number] for number in step.floats]
    return [*results, *((UPDATE, flat.variables[node].name) for node in written(flat))]


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
        self._changed = [node for node in written(flat) if node in changes]
        self._written = [node for node in written(flat) if node not in changes]
        self._order = [[*self._changed, *self._written].index(node) for node in written(flat)]
        with self._joint.graph.as_default():
            self._variables = [_read(self._joint.tensor(FLOAT32, node)) for node in self._written]
            for node in self._changed:
                name, place = changes[node]
                operation = self._joint.graph.get_operation_by_name(f"{FLOAT32}/{name}")
                self._results.append(tf.cast(operation.inputs[place], tf.float32))

    def run(self, number: int, scale: float, *, is_disturbed: bool = False) -> list[np.ndarray]:
        """The outputs, in the order of :func:`output_names`; arguments as for :meth:`JointGraph.fetch`."""
        results = self._joint.fetch(self._results, number, scale, is_disturbed=is_disturbed)
        change = disturbed if is_disturbed else lambda value: value
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
        return verdicts.settled(row) if verdicts.is_enough(row) else self._session.run(thorough, feed)

    def _of(self, dtype: Any, is_update: bool) -> tuple[Any, Any, Any, Any]:
        import tensorflow as tf

        if (dtype, is_update) not in self._ends:
            smallest = float("inf") if is_update else self._smallest
            with self._graph.as_default():
                ends = tf.compat.v1.placeholder(dtype, None), tf.compat.v1.placeholder(tf.float32, None)
                quick = verdicts.quick_row(*ends, smallest)
                self._ends[dtype, is_update] = (*ends, quick, verdicts.thorough_row(*ends, smallest))
        return self._ends[dtype, is_update]


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
