"""Splits fused products that cannot be 16 bit although their product can.

TensorFlow's remapper runs before amp_tf. MatMul, BiasAdd and Relu are a ``_FusedMatMul`` by then.
On CPUs without avx512 it has a kernel in float32 alone, and in float16 it has none on any CPU. So
the fused product becomes the nodes that it was made of, and the product is converted like any
other.

    before:  dense/Relu = _FusedMatMul(x, w, bias) fused_ops=[BiasAdd, Relu]
    after:   dense/Relu-MatMul-0-AmpTfSplit = MatMul(x, w)
             dense/Relu-BiasAdd-0-AmpTfSplit = BiasAdd(…, bias)
             dense/Relu = Relu(…)

The last node keeps the fused product's name, for readers, fetches and feeds; the others are named
after it, and the user's patterns find them by its name too (:func:`amp_tf.graph.names.whole_of`).
TensorFlow's remapper, which runs once more, fuses 16-bit products only where it has the kernel.

A fused product that has a 16-bit kernel is split if its result is needed in float32: for accuracy,
such as a bias before a logarithm, or because it is fetched. The painting shows which products these
are. A product that stays in float32 even so is left whole, and so is one that was 16 bit and of
which no part becomes float32. If amp_tf chooses the precision, the cost model judges the split
product; products without a 16-bit fused kernel are then split only if the user forces the node. All
is dropped where nothing becomes 16 bit. Only GraphDefs have fused products: TensorFlow's remapper
sees no FunctionDef. A second rewrite finds nothing to split.

Chains of unary functions are split as well, if one of them magnifies errors or depends on
fractions: on CPUs TensorFlow makes one ``_UnaryOpsComposition`` of Neg and Exp, in which no rule
would see the Exp. TensorFlow's next round joins the functions again that stay in float32.

Refused: nodes that the user keeps in float32 or that are on another device; steps and attributes
for which :mod:`amp_tf.oplists.fusions` has no row, Gelus among them; an op that the user took off
the lists; channels first, and whatever else only oneDNN's fused kernels compute on CPUs, because
the product alone would end in an error.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from amp_tf.graph import datatypes
from amp_tf.graph.attributes import value_of
from amp_tf.graph.datatypes import Node
from amp_tf.graph.edits import Reop, Tensor, attribute
from amp_tf.graph.names import SPLIT_SUFFIX
from amp_tf.graph.sizes import SHAPES_ATTR, shape_of
from amp_tf.graph.view import GraphView
from amp_tf.oplists import fusions
from amp_tf.oplists.kernels import has_channels_first
from amp_tf.oplists.table import (
    ABSOLUTE,
    ALLOW,
    BIASES,
    CONSTANTS,
    FUSED_PRODUCTS,
    MAGNIFYING,
    NORMALIZING,
)
from amp_tf.oplists.targets import CPU_DEVICE
from amp_tf.painting.eligibility import SCOPE_ATTR
from amp_tf.painting.paint import RULES
from amp_tf.painting.reasons import Rule
from amp_tf.rewriting.form import Form, NewNodes

_TO_BE_MADE = (SHAPES_ATTR, "_input_shapes")  # not true of a node with other inputs or results


def split(form: Form) -> Form:
    """Splits chains of functions, and fused products without a 16-bit kernel of their own."""
    return with_parts(form, {**_compositions(form.view), **_stuck_products(form)})


def split_in_float32(form: Form) -> Form:
    """Splits fused products whose result is float32 and whose product can be 16 bit.

    The result is float32 for accuracy, or because the caller reads it.
    """
    target = form.job.resolution.target
    if target is None or target.device_type != CPU_DEVICE:
        return form
    painting = form.painting
    reasons = {Rule.PRESERVED}
    for row in RULES:
        reasons.update(row.reasons)
    wanted = list(painting.to_split)
    for node in form.view.nodes_with(FUSED_PRODUCTS):
        if painting.reason(node).rule in reasons:
            wanted.append(node)
    chains: dict[Node, list[Part]] = {}
    for node in dict.fromkeys(wanted):
        parts = parts_of(form, node)
        if parts:
            chains[node] = parts
    was_f16 = {*painting.converted_nodes()}

    def gained(after: Form, chains: dict[Node, list[Part]]) -> dict[Node, list[Part]]:
        """Returns the chains in which the product becomes 16 bit and a part float32."""
        is_f16 = {*after.painting.converted_nodes()}
        found = {}
        product = form.view.node_count  # the first new node of each chain
        for node, parts in chains.items():
            end = product + len(parts) - 1
            is_whole = node in was_f16 and is_f16.issuperset([*range(product, end), node])
            if product in is_f16 and not is_whole:
                found[node] = parts
            product = end
        return found

    return form.settled(chains, functools.partial(with_parts, form), gained)


def _compositions(view: GraphView) -> dict[Node, Sequence[Part]]:
    """Returns the parts of each float32 chain in which a function needs exact values.

    Such a function magnifies errors or depends on fractions.
    """
    found: dict[Node, Sequence[Part]] = {}
    for node in view.nodes_with(fusions.COMPOSITIONS):
        proto = view.protos[node]
        names = [name.decode() for name in proto.attr["op_names"].list.s]
        if proto.attr["T"].type != datatypes.FLOAT or (MAGNIFYING | ABSOLUTE).isdisjoint(names):
            continue
        parts = [Part(fusions.Step(name), ()) for name in names]
        parts[0] = Part(parts[0].step, view.inputs(node))
        found[node] = parts
    return found


def _stuck_products(form: Form) -> dict[Node, Sequence[Part]]:
    """Returns the parts of each fused product that cannot be 16 bit although its product can.

    The lists allow the product, or the user forces the node.
    """
    target = form.job.resolution.target
    if target is None or target.device_type != CPU_DEVICE:
        return {}
    list_of = target.lists.list_of
    found: dict[Node, Sequence[Part]] = {}
    for node in form.view.nodes_with(fusions.SPLIT_PRODUCTS):
        op = form.view.ops[node]
        is_forced = node in form.obstacles.forced
        if form.job.chooses and not is_forced:
            continue
        if form.obstacles.code_of.get(node) not in (None, Rule.PRESERVED):
            continue
        if op in FUSED_PRODUCTS and op not in target.without_kernel:
            continue
        own_list = ALLOW if op in FUSED_PRODUCTS else None
        product = fusions.SPLIT_PRODUCTS[op].op
        is_listed = list_of.get(product) == ALLOW and list_of.get(op) == own_list
        if not is_forced and not is_listed:
            continue
        parts = parts_of(form, node)
        if parts:
            found[node] = parts
    return found


class Part(NamedTuple):
    """A node that a fused product is split into.

    It reads the result of the part before it, and then its inputs.
    """

    step: fusions.Step
    inputs: Sequence[Tensor]


def parts_of(form: Form, node: Node) -> list[Part]:
    """Returns the parts of a fused product, or none if something about it is unknown."""
    view = form.view
    proto = view.protos[node]
    product = fusions.SPLIT_PRODUCTS[view.ops[node]]
    types = {view.dtypes[unit] for unit in view.units(node) if not view.slot(node, unit).is_fixed}
    if types != {datatypes.FLOAT} or not _runs_alone(proto, product):
        return []
    names = [name.decode() for name in value_of(proto, "fused_ops").list.s]
    if not names or any(name not in fusions.SPLIT_STEPS for name in names):
        return []
    inputs = view.inputs(node)
    end = 1 + product.arguments
    parts = [Part(product, inputs[:end])]
    for name in names:
        step = fusions.SPLIT_STEPS[name]
        start = end
        end += step.arguments
        part = Part(step, inputs[start:end])
        if len(part.inputs) == step.arguments and _is_wide_bias(form, part):
            part = Part(fusions.WIDE_BIAS, part.inputs)
        parts.append(part)
    return parts if end == len(inputs) else []


def _runs_alone(proto: Any, product: fusions.Step) -> bool:
    """Tells whether a fused product equals its steps, and the product alone needs no oneDNN."""
    if "_kernel" in proto.attr or has_channels_first(proto.attr):
        return False
    if value_of(proto, "filter_format").s not in (b"", fusions.FILTER_LAYOUT):
        return False
    for name in product.all_ones:
        if any(size != 1 for size in value_of(proto, name).list.i):
            return False
    for name in fusions.HOLDING_MORE:
        more = value_of(proto, name)
        if more.i or more.list.i:
            return False
    return True


def _is_wide_bias(form: Form, part: Part) -> bool:
    """Tells whether a bias may have more dimensions than one.

    It is then split into an ordinary sum, as which it was before oneDNN fused it. With channels
    last a sum is right for one dimension as well, so it is also used if the shape is unknown.
    """
    if part.step.op not in BIASES:
        return False
    node, port = part.inputs[0]
    if form.view.ops[node] in CONSTANTS:
        return len(value_of(form.view.protos[node], "value").tensor.tensor_shape.dim) != 1
    shape = shape_of(form.shapes, form.view.names[node], port)
    return shape is None or len(shape) != 1


def with_parts(form: Form, chains: Mapping[Node, Sequence[Part]]) -> Form:
    """Splits fused nodes into their parts, each of which has the shape of the whole."""
    if not chains:
        return form
    view = form.view
    new = NewNodes(view, SPLIT_SUFFIX)
    reops = []
    for node, parts in chains.items():
        proto = view.protos[node]
        *firsts, last = parts
        before: tuple[Tensor, ...] = ()
        for part in firsts:
            added = new.add(
                f"{view.names[node]}-{part.step.op}",
                part.step.op,
                [*before, *part.inputs],
                _attributes(part.step, proto),
                beside=node,
                after=view.awaited(node),
                model=node,
            )
            before = ((added, 0),)
        changes: dict[str, Any] = {}
        for name in proto.attr:
            if name[:1] != "_" or name in _TO_BE_MADE:
                changes[name] = None
        changes.update(_attributes(last.step, proto))
        reops.append(Reop(node, last.step.op, changes, (*before, *last.inputs)))
    return form.adding(new, reops=tuple(reops))


def _attributes(step: fusions.Step, proto: Any) -> dict[str, Any]:
    """Returns the attributes of a part of a fused product."""
    found = {}
    for name, source in step.attributes.items():
        if source in proto.attr:
            found[name] = proto.attr[source]
    if SCOPE_ATTR in proto.attr:
        found[SCOPE_ATTR] = proto.attr[SCOPE_ATTR]
    if SHAPES_ATTR in proto.attr and step.op not in NORMALIZING:  # these have further results
        found[SHAPES_ATTR] = proto.attr[SHAPES_ATTR]
    for name, value in step.fixed.items():
        found[name] = attribute(**value)
    return {**found, "T": attribute(type=datatypes.FLOAT)}
