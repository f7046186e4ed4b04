"""Measures single nodes: which ones, and a second run of each one's op: in 16 bit, on exact inputs.

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
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from amp_tf.graph.attributes import ROUNDED_ATTR
from amp_tf.oplists.table import RESHAPING, WAYS_OUT
from amp_tf.precision import Precision
from amp_tf.tools.comparing import verdicts
from amp_tf.tools.comparing.flattening import OWN_SCOPE, FlatStep
from amp_tf.tools.comparing.joining import AMP, FLOAT32, JointGraph
from amp_tf.tools.comparing.verdicts import Statistics
from amp_tf.tools.progress import Progress

# nodes per run: with all in one run, tensors waiting for their reductions would fill the memory
_AT_ONCE = 150


@dataclasses.dataclass(frozen=True)
class Probe:
    """A node to measure."""

    name: str  #: the node
    op: str
    is_f16: bool  #: whether its result is 16 bit
    rounded: tuple[str, ...]  #: the sources of its 16-bit inputs
    truth: Any  #: its result in float32 and under amp_tf
    value: Any
    #: its result in 16 bit on exact inputs; ``None`` where its op cannot be run a second time
    local: Any
    inputs: tuple[Any, ...]  #: its inputs in float32


def probe(step: FlatStep, rewritten: Any, graph: Any, wanted: str | None) -> list[Probe]:
    """The nodes that are 16 bit, read 16 bit, or have a name in which ``wanted`` is found; sources
    before readers.

    The second runs of their ops are added to ``graph``, which has the step in float32 and as it is
    rewritten.
    """
    import tensorflow as tf

    before = {node.name for node in step.graph.node}
    after = {node.name for node in rewritten.node}
    rounded_to = _types_rounded_to(rewritten)
    ends = {text.partition(":")[0] for text in step.results}
    probes = []
    for name in nodes_run_once(step.graph):
        if name not in after or name in ends or name.startswith(f"{OWN_SCOPE}/"):
            continue
        try:
            exact, op = (graph.get_operation_by_name(f"{side}/{name}") for side in (FLOAT32, AMP))
        except KeyError:  # a constant, which both sides share
            continue
        if not op.outputs or exact.type != op.type or len(exact.inputs) != len(op.inputs):
            continue  # folding made another op of it
        dtype = exact.outputs[0].dtype
        if not dtype.is_floating or dtype.size != 4 or _is_reference(exact.outputs[0]):
            continue
        if [_origin(tensor, before) for tensor in exact.inputs] != [
            _origin(tensor, before) for tensor in op.inputs
        ]:
            continue  # folding or lifting gave it other values
        sources = [_source(tensor, before) for tensor in op.inputs]
        f16 = [source for source in sources if _is_f16(source, rounded_to)]
        rounded = tuple(dict.fromkeys(_name(source.op.name) for source in f16))
        is_f16, is_way_out = _is_f16(op.outputs[0], rounded_to), op.type.endswith(tuple(WAYS_OUT))
        if is_f16 or rounded or (wanted and re.search(wanted, name)):
            own_type = rounded_to.get(name, op.outputs[0].dtype)
            again = (
                _again(name, exact, op, sources, graph)
                if (is_f16 or rounded) and not is_way_out
                else None
            )
            inputs = (
                ()
                if is_way_out
                else tuple(tensor for tensor in exact.inputs if tensor.dtype.is_floating)
            )
            with graph.as_default():
                value = tf.cast(op.outputs[0], own_type)
                local = None if again is None else tf.cast(again, own_type)
            probes.append(
                Probe(name, op.type, is_f16, rounded, exact.outputs[0], value, local, inputs)
            )
    return probes


def _types_rounded_to(rewritten: Any) -> dict[str, Any]:
    """The types to which operands and results of products in float32 are rounded, by the products'
    names.
    """
    import tensorflow as tf

    marked = (node for node in rewritten.node if ROUNDED_ATTR in node.attr)
    return {node.name: tf.as_dtype(node.attr[ROUNDED_ATTR].type) for node in marked}


def _is_f16(tensor: Any, rounded_to: Mapping[str, Any]) -> bool:
    """Whether what a node gives is 16 bit, or is rounded to it behind the node."""
    is_rounded = _name(tensor.op.name) in rounded_to
    return bool(tensor.dtype.is_floating and (tensor.dtype.size == 2 or is_rounded))


def _source(tensor: Any, before: set[str]) -> Any:
    while tensor.op.type == "Cast" and _name(tensor.op.name) not in before:  # of the rewrite
        tensor = tensor.op.inputs[0]
    return tensor


def _origin(tensor: Any, before: set[str]) -> str:
    """The tensor of the step from which a tensor has its values, whatever its shape, by name."""
    while (tensor := _source(tensor, before)).op.type in RESHAPING:
        tensor = tensor.op.inputs[0]
    return _name(tensor.name)


def _name(name: str) -> str:
    return name.removeprefix(f"{AMP}/").removeprefix(f"{FLOAT32}/")  # in the step, of one side's


def _is_reference(tensor: Any) -> bool:
    return bool(tensor.dtype != tensor.dtype.base_dtype)  # a variable of TF1's


def _again(name: str, exact: Any, op: Any, sources: Sequence[Any], graph: Any) -> Any:
    """Runs the op a second time, in the rewritten types, on float32's values."""
    import tensorflow as tf

    writes = any(map(_is_reference, op.inputs)) and op.op_def.input_arg[0].is_ref
    if (
        op.op_def.is_stateful
        or writes
        or any(tensor.dtype in (tf.resource, tf.variant) for tensor in op.inputs)
    ):
        return None
    with graph.as_default():
        inputs = []
        for truth, tensor, source in zip(exact.inputs, op.inputs, sources, strict=True):
            value = truth
            for dtype in _types_between(source, tensor) if truth.dtype.is_floating else ():
                value = tf.cast(value, dtype)
            inputs.append(value)
        given = op.node_def.attr  # parsed at each access
        attributes = {key: given[key] for key in given if not key.startswith("_")}
        types = [tensor.dtype for tensor in op.outputs]
        return graph.create_op(
            op.type, inputs, types, name=f"local/{name}", attrs=attributes
        ).outputs[0]


def _types_between(source: Any, tensor: Any) -> list[Any]:
    """The type of a tensor, and those of the casts behind it up to one that a node reads."""
    types = [tensor.dtype]
    while tensor.name != source.name:
        tensor = tensor.op.inputs[0]
        types.append(tensor.dtype)
    return types[::-1]


@dataclasses.dataclass(frozen=True)
class NodeMeasurement:
    """The measurements at one node."""

    name: str  #: as those of its probe
    op: str
    is_f16: bool
    rounded: tuple[str, ...]
    accumulated: Statistics  #: its result in the run against float32's
    local: (
        Statistics | None
    )  #: its result in 16 bit on exact inputs against float32's; ``None`` where it has none
    largest_input: float  #: the largest size of a number of its inputs in float32


def measure_nodes(
    flat: FlatStep,
    rewritten: Any,
    precision: Precision,
    number: int,
    scale: float,
    wanted: str | None,
    progress: Progress,
) -> list[NodeMeasurement]:
    """Measures each node in one batch, and further ones whose names match ``wanted``; sources come
    before readers.
    """
    import tensorflow as tf

    progress("looking at each node: building the graph")
    joint = JointGraph(flat, {FLOAT32: flat.graph, AMP: rewritten})
    found: list[np.ndarray] = []
    sizes: dict[str, float] = {}
    with joint.graph.as_default():
        probes = probe(flat, rewritten, joint.graph, wanted)
        measure = verdicts.rows_in(joint.graph, precision.smallest)
        results = [[each.value, *([] if each.local is None else [each.local])] for each in probes]
        rows = [measure(values, each.truth) for each, values in zip(probes, results, strict=True)]
        known = {each.truth.name for each in probes}  # whose own rows have their largest sizes
        others = {
            tensor.name: tf.cast(tensor, tf.float32) for each in probes for tensor in each.inputs
        }
        inputs = {
            name: tf.maximum(tf.reduce_max(value), -tf.reduce_min(value))
            for name, value in others.items()
            if name not in known
        }
    for start in range(0, len(probes), _AT_ONCE):
        progress(f"looking at {len(probes)} nodes, from number {start + 1} on")
        part = slice(start, start + _AT_ONCE)
        read = {tensor.name for each in probes[part] for tensor in each.inputs} & (
            inputs.keys() - sizes.keys()
        )
        some, more = joint.fetch(
            (rows[part], {name: inputs[name] for name in read}), number, scale, is_alone=True
        )
        found += some
        sizes.update(more)
        joint.close()  # a session keeps a graph for each set of nodes that was run
    sizes.update(
        (each.truth.name, row[0][verdicts.LARGEST]) for each, row in zip(probes, found, strict=True)
    )
    return [
        NodeMeasurement(
            *(each.name, each.op, each.is_f16, each.rounded),
            accumulated=Statistics.of(row[:1]),
            local=None if each.local is None else Statistics.of(row[1:]),
            largest_input=float(max((sizes[tensor.name] for tensor in each.inputs), default=0.0)),
        )
        for each, row in zip(probes, found, strict=True)
    ]


def nodes_run_once(graph: Any) -> list[str]:
    """The nodes that run exactly once, sources before readers, by name."""
    nodes = {node.name: node for node in graph.node}
    sources = {name: [_node_of(text) for text in node.input] for name, node in nodes.items()}
    for name, node in nodes.items():
        if node.op.endswith("Merge"):  # the edge back into a loop would make a cycle
            sources[name] = [
                source for source in sources[name] if not nodes[source].op.endswith("NextIteration")
            ]
    # What a node runs in: loops, by their depths, and outside of loops branches, by their condition
    # and Switch's port.
    around: dict[str, frozenset[Any]] = {}
    for name in graphlib.TopologicalSorter(sources).static_order():
        op, found = nodes[name].op, []
        for source, text in ((_node_of(text), text) for text in nodes[name].input):
            if source in around:
                is_branch = nodes[source].op.endswith("Switch") and 0 not in around[source]
                branch = (
                    [(nodes[source].input[1], text.partition(":")[2] or "0")] if is_branch else []
                )
                found.append(around[source].union(branch))
        combine = frozenset.intersection if op.endswith("Merge") else frozenset.union
        loops = {each for inside in found for each in inside if isinstance(each, int)}
        here = (combine(*found) if found else frozenset()) | loops
        if op.endswith("Enter"):
            here |= {len(loops)}
        around[name] = here - {len(loops) - 1} if op.endswith("Exit") else here
    # One result of a Switch does not exist.
    return [
        name
        for name, found in around.items()
        if not found and not nodes[name].op.endswith("Switch")
    ]


def _node_of(text: str) -> str:
    return text.removeprefix("^").partition(":")[0]
