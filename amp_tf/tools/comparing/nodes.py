"""Measures single nodes.

It chooses them, and runs the op of each once more, in 16 bit on exact inputs.

The *accumulated error* of a node is its error in the run. Its *local error* is what the node alone
adds: its op runs in the types of the rewrite, on float32's values as inputs, rounded to 16 bit
where the rewrite has them in 16 bit. So a float32 sum of 16-bit values has a local error too, that
of the rounding. A product that float32 computes is 16 bit if its operands and result are rounded to
it.

Nodes are those of the flat graph that run exactly once a step. Values inside a loop belong to an
iteration, and those of a branch may not exist, so neither can be passed to a reduction outside.
"""

from __future__ import annotations

import dataclasses
import graphlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from amp_tf.graph.attributes import ROUNDED_ATTR
from amp_tf.graph.names import node_of
from amp_tf.oplists.table import RESHAPING, WAYS_OUT
from amp_tf.precision import Precision
from amp_tf.tools.comparing import verdicts
from amp_tf.tools.comparing.flattening import OWN_SCOPE, FlatStep, Names
from amp_tf.tools.comparing.joining import AMP, FLOAT32, JointGraph
from amp_tf.tools.comparing.verdicts import Statistics
from amp_tf.tools.progress import Progress

# nodes per run: with all in one run, tensors waiting for their reductions would fill the memory
_AT_ONCE = 150


@dataclasses.dataclass(frozen=True)
class NodeError:
    """The error of one node."""

    name: str  #: the node's
    op: str  #: the node's
    is_f16: bool  #: whether its result is 16 bit
    rounded: Names  #: the sources of its 16-bit inputs
    #: relative L2 error of its result in the run; infinite where it is not finite and float32 is
    accumulated: float
    #: the error of its op alone in 16 bit, on exact inputs; ``None`` where the op reads no 16 bit
    #: and is not 16 bit, or cannot be run a second time
    local: float | None
    #: whether two digits of its result are right in float32 itself: a difference that is nearly
    #: zero is all rounding
    has_truth: bool
    nonfinite: float  #: share of its result in the run that is inf or nan, and finite in float32
    nonfinite_alone: float  #: the same on exact inputs
    underflow: float  #: share of its result on exact inputs that is zero, and not in float32
    largest: float  #: the largest magnitude of its result in float32
    largest_input: float  #: the largest number among its inputs


@dataclasses.dataclass(frozen=True)
class Probe:
    """A node to measure."""

    name: str  #: the node
    op: str
    is_f16: bool  #: whether its result is 16 bit
    rounded: Names  #: the sources of its 16-bit inputs
    truth: Any  #: its result in float32
    results: tuple[Any, ...]  #: under amp_tf; then in 16 bit on exact inputs, if it can run again
    inputs: tuple[Any, ...]  #: its inputs in float32


def probe(step: FlatStep, rewritten: Any, graph: Any) -> Iterator[Probe]:
    """Yields the nodes that are 16 bit or read 16 bit; sources come before readers.

    The second runs of their ops are added to ``graph``, which has the step in float32 and as it is
    rewritten.
    """
    versions = Versions(step, rewritten)
    ends = set(map(node_of, step.results))
    for name in nodes_run_once(step.graph):
        if name in ends or name.startswith(f"{OWN_SCOPE}/") or name not in versions.common:
            continue
        exact = graph.get_operation_by_name(f"{FLOAT32}/{name}")
        op = graph.get_operation_by_name(f"{AMP}/{name}")
        if _has_float32_result(exact) and versions.are_alike(exact, op):
            probed = versions.probe(exact, op)
            if probed is not None:
                yield probed


def _has_float32_result(exact: Any) -> bool:
    if not exact.outputs:
        return False
    dtype = exact.outputs[0].dtype
    is_reference = dtype != dtype.base_dtype  # a variable of TF1's
    return bool(dtype.is_floating and dtype.size == 4 and not is_reference)


class Versions:
    """A step in float32 and as it is rewritten."""

    def __init__(self, step: FlatStep, rewritten: Any) -> None:
        import tensorflow as tf

        self._before = {node.name for node in step.graph.node}
        self.common = self._before.intersection(node.name for node in rewritten.node)
        # The types to which operands and results of products in float32 are rounded.
        self._rounded_to: dict[str, Any] = {}
        for node in rewritten.node:
            if ROUNDED_ATTR in node.attr:
                self._rounded_to[node.name] = tf.as_dtype(node.attr[ROUNDED_ATTR].type)

    def are_alike(self, exact: Any, op: Any) -> bool:
        """Tells whether two ops compute the same; folding and lifting may give one other values."""
        if exact.type != op.type or len(exact.inputs) != len(op.inputs):
            return False
        pairs = zip(exact.inputs, op.inputs, strict=True)
        return all(self._origin(one) == self._origin(other) for one, other in pairs)

    def probe(self, exact: Any, op: Any) -> Probe | None:
        """Returns what to measure at a node; ``None`` where nothing of it is 16 bit."""
        import tensorflow as tf

        name = _name(op.name)
        sources = list(map(self._source, op.inputs))
        rounded = [_name(source.op.name) for source in sources if self._is_f16(source)]
        is_f16 = self._is_f16(op.outputs[0])
        if not is_f16 and not rounded:
            return None
        inputs: tuple[Any, ...] = ()
        results = [op.outputs[0]]
        if not op.type.endswith(tuple(WAYS_OUT)):
            inputs = tuple(tensor for tensor in exact.inputs if tensor.dtype.is_floating)
            if _can_run_again(op):
                results.append(_run_again(exact, op, sources))
        with op.graph.as_default():
            own_type = self._rounded_to.get(name, op.outputs[0].dtype)
            results = [tf.cast(result, own_type) for result in results]
        return Probe(
            name,
            op.type,
            is_f16,
            rounded=tuple(dict.fromkeys(rounded)),
            truth=exact.outputs[0],
            results=tuple(results),
            inputs=inputs,
        )

    def _is_f16(self, tensor: Any) -> bool:
        """Tells whether what a node gives is 16 bit, or is rounded to it behind the node."""
        is_rounded = _name(tensor.op.name) in self._rounded_to
        return bool(tensor.dtype.is_floating and (tensor.dtype.size == 2 or is_rounded))

    def _source(self, tensor: Any) -> Any:
        """Returns the tensor in front of the casts that the rewrite added."""
        while tensor.op.type == "Cast" and _name(tensor.op.name) not in self._before:
            tensor = tensor.op.inputs[0]
        return tensor

    def _origin(self, tensor: Any) -> str:
        """Names the tensor of the step from which a tensor has its values, whatever its shape."""
        tensor = self._source(tensor)
        while tensor.op.type in RESHAPING:
            tensor = self._source(tensor.op.inputs[0])
        return _name(tensor.name)


def _name(name: str) -> str:
    """Returns the name in the step of a node or tensor of one side."""
    return name.removeprefix(f"{AMP}/").removeprefix(f"{FLOAT32}/")


def _can_run_again(op: Any) -> bool:
    """Tells whether a second run of an op gives the same and changes nothing."""
    import tensorflow as tf

    if op.op_def.is_stateful:
        return False
    for tensor in op.inputs:
        if tensor.dtype in (tf.resource, tf.variant) or tensor.dtype != tensor.dtype.base_dtype:
            return False
    return True


def _run_again(exact: Any, op: Any, sources: Sequence[Any]) -> Any:
    """Runs the op a second time, in the rewritten types, on float32's values."""
    import tensorflow as tf

    with op.graph.as_default():
        inputs = []
        for truth, tensor, source in zip(exact.inputs, op.inputs, sources, strict=True):
            value = truth
            if truth.dtype.is_floating:
                for dtype in _types_between(source, tensor):
                    value = tf.cast(value, dtype)
            inputs.append(value)
        given = op.node_def.attr  # parsed at each access
        attributes = {key: given[key] for key in given if not key.startswith("_")}
        types = [tensor.dtype for tensor in op.outputs]
        name = f"local/{_name(op.name)}"
        again = op.graph.create_op(op.type, inputs, types, name=name, attrs=attributes)
    return again.outputs[0]


def _types_between(source: Any, tensor: Any) -> list[Any]:
    """Returns the type of a tensor, and those of the casts from it to the one that a node reads."""
    types = [tensor.dtype]
    while tensor.name != source.name:
        tensor = tensor.op.inputs[0]
        types.append(tensor.dtype)
    return types[::-1]


def measure_nodes(
    flat: FlatStep,
    rewritten: Any,
    precision: Precision,
    number: int,
    scale: float,
    progress: Progress,
) -> list[NodeError]:
    """Measures each node in one batch; sources come before readers.

    Args:
        flat: the step.
        rewritten: its graph as amp_tf rewrites it.
        precision: the 16-bit type.
        number: the batch's.
        scale: the loss scale.
        progress: called with what is being done.
    """
    import tensorflow as tf

    progress("looking at each node: building the graph")
    joint = JointGraph(flat, {FLOAT32: flat.graph, AMP: rewritten})
    rows: dict[str, Any] = {}  # by the name of the tensor in float32
    with joint.graph.as_default():
        probes = list(probe(flat, rewritten, joint.graph))
        measure = verdicts.rows_in(joint.graph, precision.smallest)
        for each in probes:
            rows[each.truth.name] = measure(each.results, each.truth)
        for each in probes:
            for tensor in each.inputs:  # of an input only its largest number is read
                if tensor.name not in rows:
                    truth = tf.cast(tensor, tf.float32)
                    rows[tensor.name] = measure([truth], truth)
    measured: dict[str, np.ndarray] = {}
    names = list(rows)
    for start in range(0, len(names), _AT_ONCE):
        progress(f"looking at {len(names)} tensors, from number {start + 1} on")
        part = {name: rows[name] for name in names[start : start + _AT_ONCE]}
        measured |= joint.fetch(part, number, scale, is_alone=True)
        joint.close()  # a session keeps a graph for each set of nodes that was run
    return [_error(each, measured, precision) for each in probes]


def _error(each: Probe, rows: Mapping[str, np.ndarray], precision: Precision) -> NodeError:
    """Reads the error of a node from the rows of tensors."""
    own = rows[each.truth.name]
    run = Statistics.of(own[:1])
    alone = Statistics.of(own[-1:])  # the same where its op cannot run again
    inputs = [Statistics.of(rows[tensor.name]).largest for tensor in each.inputs]
    local = None
    if len(own) > 1:
        local = alone.distance
    return NodeError(
        each.name,
        each.op,
        each.is_f16,
        each.rounded,
        accumulated=run.distance,
        local=local,
        has_truth=verdicts.has_truth(run, precision) and verdicts.has_truth(alone, precision),
        nonfinite=run.nonfinite,
        nonfinite_alone=alone.nonfinite,
        underflow=alone.underflow,
        largest=run.largest,
        largest_input=max(inputs, default=0.0),
    )


def nodes_run_once(graph: Any) -> list[str]:
    """Returns the names of the nodes that run exactly once, sources before readers.

    A node's depth is the number of loops and branches around it. ``Enter`` and ``Exit`` stand
    around a loop, ``Switch`` and ``Merge`` around the branches of a condition; those that belong to
    a loop itself read its ``LoopCond``, or what enters it.
    """
    nodes = {node.name: node for node in graph.node}
    sources: dict[str, list[str]] = {}
    for name, node in nodes.items():
        sources[name] = []
        for source in map(node_of, node.input):
            # The edge back into a loop would make a cycle.
            if not nodes[source].op.endswith("NextIteration"):
                sources[name].append(source)
    depths: dict[str, int] = {}
    for name in graphlib.TopologicalSorter(sources).static_order():
        op = nodes[name].op
        around = set()
        depth = 0
        for source in sources[name]:
            around.add(nodes[source].op)
            depth = max(depth, depths[source])
        if op.endswith("Enter"):
            depth += 1
        elif op.endswith("Exit"):
            depth -= 1
        elif op.endswith("Switch") and "LoopCond" not in around:
            depth += 1
        elif op.endswith("Merge") and not any(other.endswith("Enter") for other in around):
            depth -= 1
        depths[name] = depth
    return [name for name, depth in depths.items() if depth == 0]
