"""The nodes to measure, and a second run of each one's op: in 16 bit, on exact inputs.

The *accumulated error* of a node is its error in the run. Its *local error* is what the node alone adds: its op runs in
the types of the rewrite, on float32's values as inputs, rounded to 16 bit where the rewrite has them in 16 bit. So a
float32 sum of 16-bit values has a local error too, that of the rounding.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

from amp_tf.comparing.flattening import FlatStep
from amp_tf.comparing.joining import AMP, FLOAT32
from amp_tf.comparing.regions import nodes_run_once
from amp_tf.comparing.steps import OWN_SCOPE
from amp_tf.oplists.table import RESHAPING, WAYS_OUT


@dataclasses.dataclass(frozen=True)
class Probe:
    """A node to measure.

    Attributes:
        name, op: the node.
        is_f16: whether its result is 16 bit.
        rounded: the sources of its 16-bit inputs.
        truth, value: its result in float32 and under amp_tf.
        local: its result in 16 bit on exact inputs; ``None`` where its op cannot be run a second time.
        inputs: its inputs in float32.
    """

    name: str
    op: str
    is_f16: bool
    rounded: tuple[str, ...]
    truth: Any
    value: Any
    local: Any
    inputs: tuple[Any, ...]


def probe(step: FlatStep, rewritten: Any, graph: Any, wanted: str | None) -> list[Probe]:
    """The probes, sources before readers: nodes that are 16 bit, read 16 bit, or are named by the user.

    Args:
        step: the step.
        rewritten: the GraphDef as amp_tf rewrites it.
        graph: the ``tf.Graph`` with both; the second runs of ops are added to it.
        wanted: a regular expression for names of further nodes.
    """
    before = {node.name for node in step.graph.node}
    after = {node.name: node for node in rewritten.node}
    ends = {text.partition(":")[0] for text in step.results}
    search = re.compile(wanted).search if wanted else None
    found = []
    for name in nodes_run_once(step.graph):
        if name not in after or name in ends or name.startswith(f"{OWN_SCOPE}/"):
            continue
        if not (made := _probe(name, before, after, graph, bool(search and search(name)))):
            continue
        found.append(made)
    return found


def _probe(name: str, before: set[str], after: Any, graph: Any, is_wanted: bool) -> Probe | None:
    try:
        exact, op = (graph.get_operation_by_name(f"{side}/{name}") for side in (FLOAT32, AMP))
    except KeyError:  # a constant, which both sides share
        return None
    if not op.outputs or exact.type != op.type or len(exact.inputs) != len(op.inputs):
        return None  # folding made another op of it
    dtype = exact.outputs[0].dtype
    if not dtype.is_floating or dtype.size != 4 or _is_reference(exact.outputs[0]):
        return None
    is_f16 = op.outputs[0].dtype.size == 2
    sources = [_source(tensor, before) for tensor in op.inputs]
    if [_origin(tensor, before) for tensor in exact.inputs] != [_origin(tensor, before) for tensor in op.inputs]:
        return None  # folding or lifting gave it other values
    rounded = [source.op.name.removeprefix(f"{AMP}/") for source in sources if _is_f16(source)]
    if not (is_f16 or rounded or is_wanted):
        return None
    is_way_out = op.type.endswith(tuple(WAYS_OUT))
    return Probe(
        name=name,
        op=op.type,
        is_f16=is_f16,
        rounded=tuple(dict.fromkeys(rounded)),
        truth=exact.outputs[0],
        value=op.outputs[0],
        local=_again(name, exact, op, sources, graph) if (is_f16 or rounded) and not is_way_out else None,
        inputs=() if is_way_out else tuple(tensor for tensor in exact.inputs if tensor.dtype.is_floating),
    )


def _source(tensor: Any, before: set[str]) -> Any:
    """The tensor before the rewrite cast it."""
    while tensor.op.type == "Cast" and _name(tensor.op.name) not in before:
        tensor = tensor.op.inputs[0]
    return tensor


def _origin(tensor: Any, before: set[str]) -> str:
    """The tensor of the step from which a tensor has its values, whatever its shape, by name."""
    while (tensor := _source(tensor, before)).op.type in RESHAPING:
        tensor = tensor.op.inputs[0]
    return _name(tensor.name)


def _name(name: str) -> str:
    """The name in the step of a node or tensor of one side."""
    return name.removeprefix(f"{AMP}/").removeprefix(f"{FLOAT32}/")


def _is_f16(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating and tensor.dtype.size == 2)


def _is_reference(tensor: Any) -> bool:
    """Whether a tensor is a reference variable of TF1's."""
    return bool(tensor.dtype != tensor.dtype.base_dtype)


def _again(name: str, exact: Any, op: Any, sources: Sequence[Any], graph: Any) -> Any:
    """Runs the op a second time, in the rewritten types, on float32's values."""
    import tensorflow as tf

    if op.op_def.is_stateful or any(tensor.dtype in (tf.resource, tf.variant) for tensor in op.inputs):
        return None
    if any(map(_is_reference, op.inputs)) and op.op_def.input_arg[0].is_ref:
        return None
    with graph.as_default():
        inputs = list(_rounded(exact.inputs, op.inputs, sources))
        given = op.node_def.attr  # parsed at each access
        attributes = {key: given[key] for key in given if not key.startswith("_")}
        types = [tensor.dtype for tensor in op.outputs]
        return graph.create_op(op.type, inputs, types, name=f"local/{name}", attrs=attributes).outputs[0]


def _rounded(exact: Sequence[Any], wanted: Sequence[Any], sources: Sequence[Any]) -> Iterator[Any]:
    import tensorflow as tf

    for truth, tensor, source in zip(exact, wanted, sources, strict=True):
        if not truth.dtype.is_floating:
            yield truth
            continue
        yield tf.cast(tf.cast(truth, source.dtype), tensor.dtype)
