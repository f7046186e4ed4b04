"""Splits what TensorFlow fused: products with what follows, where the whole cannot be 16 bit and
the product can.

TensorFlow's remapper runs before amp_tf. MatMul, BiasAdd and Relu are a ``_FusedMatMul`` by then,
whose kernel exists in float32 alone on CPUs without avx512, and in float16 on all. So the fused
product becomes what it was made of, and the product is converted like any other.

    before:  dense/Relu = _FusedMatMul(x, w, bias) fused_ops=[BiasAdd, Relu]
    after:   dense/Relu-MatMul-0-AmpTfSplit = MatMul(x, w)
             dense/Relu-BiasAdd-0-AmpTfSplit = BiasAdd(…, bias)
             dense/Relu = Relu(…)

The last node keeps the fused product's name, for readers, fetches and feeds; the others are named
after it, and the user's patterns find them by its name too (:func:`amp_tf.graph.names.whole_of`).
TensorFlow's remapper, which runs once more, fuses 16-bit products only where it has the kernel.

A fused product that has a 16-bit kernel is split where its result is needed in float32: for
accuracy, such as a bias before a logarithm, or because it is fetched. Which these are shows when
the graph is painted. Products that stay in float32 all the same are left whole, as are those that
were 16 bit and of which no part becomes float32. Where amp_tf chooses, the cost model judges the
product as it is once split, and products without a 16-bit fused kernel are split only if the user
forces the node. All is dropped where nothing becomes 16 bit. Only in GraphDefs: TensorFlow's
remapper sees no FunctionDef. A second rewrite finds nothing to split.

Chains of functions of one number are split as well, where one of them magnifies errors or depends
on fractions: on CPUs TensorFlow makes one ``_UnaryOpsComposition`` of Neg and Exp, in which no rule
would see the Exp. TensorFlow's next round joins again what is left in float32.

Refused: nodes that the user keeps in float32 or that are on another device; steps and attributes
for which :mod:`amp_tf.oplists.fusions` has no row, Gelus among them; an op that the user took off
the lists; channels first and whatever else only oneDNN computes on CPUs, because without it the
product would end in an error.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from amp_tf.graph import datatypes
from amp_tf.graph.attributes import value_of
from amp_tf.graph.datatypes import Node
from amp_tf.graph.edits import Edits, NewNode, Reop, Tensor, attribute, having
from amp_tf.graph.names import SPLIT_SUFFIX, FreshNames
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
from amp_tf.rewriting.form import Form

_TO_BE_MADE = (SHAPES_ATTR, "_input_shapes")  # a node with other inputs or results has others


def split(form: Form) -> Form:
    """Splits chains of functions, and all fused products whose product can be 16 bit where they
    cannot.
    """
    return with_parts(form, {**_compositions(form.view), **_stuck_products(form)})


def split_in_float32(form: Form) -> Form:
    """Splits fused products whose result is float32 for accuracy or for the caller, and whose
    product can be 16 bit.
    """
    target = form.job.resolution.target
    if target is None or target.device_type != CPU_DEVICE:
        return form
    painting, reasons = (
        form.painting,
        {Rule.PRESERVED, *(reason for row in RULES for reason in row.reasons)},
    )
    stays = (
        node
        for node in form.view.nodes_with(FUSED_PRODUCTS)
        if painting.reason(node).rule in reasons
    )
    wanted = dict.fromkeys([*painting.to_split, *stays])
    chains = {node: parts for node in wanted if (parts := parts_of(form, node))}
    was_f16 = {*painting.converted_nodes()}

    def gained(after: Form, chains: dict[Node, list[Part]]) -> dict[Node, list[Part]]:
        first = itertools.accumulate(
            (len(parts) - 1 for parts in chains.values()), initial=form.view.node_count
        )
        ends = zip(chains.items(), itertools.pairwise(first), strict=True)
        is_f16 = {*after.painting.converted_nodes()}
        return {
            node: parts
            for (node, parts), (product, end) in ends
            if product in is_f16
            and not (node in was_f16 and is_f16.issuperset([*range(product, end), node]))
        }

    return form.settled(chains, functools.partial(with_parts, form), gained)


def _compositions(view: GraphView) -> dict[Node, Sequence[Part]]:
    """The parts of each float32 chain of functions in which one magnifies errors or depends on
    fractions.
    """
    found: dict[Node, Sequence[Part]] = {}
    for node in view.nodes_with(fusions.COMPOSITIONS):
        proto = view.protos[node]
        steps = [fusions.Step(name.decode()) for name in proto.attr["op_names"].list.s]
        if proto.attr["T"].type == datatypes.FLOAT and any(
            step.op in MAGNIFYING | ABSOLUTE for step in steps
        ):
            given = view.inputs(node)
            found[node] = [Part(step, given if step is steps[0] else ()) for step in steps]
    return found


def _stuck_products(form: Form) -> dict[Node, Sequence[Part]]:
    """The parts of the fused products that cannot be 16 bit although their products can, by the
    lists as they are.
    """
    target, candidates = form.job.resolution.target, form.view.nodes_with(fusions.SPLIT_PRODUCTS)
    if target is None or target.device_type != CPU_DEVICE or not candidates:
        return {}
    list_of = target.lists.list_of
    found: dict[Node, Sequence[Part]] = {}
    for node in candidates:
        op, is_forced = form.view.ops[node], node in form.obstacles.forced
        if form.obstacles.rule_of.get(node) not in (None, Rule.PRESERVED) or (
            form.job.chooses and not is_forced
        ):
            continue
        if op in FUSED_PRODUCTS and op not in target.without_kernel:
            continue
        own_list = ALLOW if op in FUSED_PRODUCTS else None
        is_listed = (
            list_of.get(fusions.SPLIT_PRODUCTS[op].op) == ALLOW and list_of.get(op) == own_list
        )
        if (is_forced or is_listed) and (parts := parts_of(form, node)):
            found[node] = parts
    return found


class Part(NamedTuple):
    """A node that a fused product is split into; it reads its inputs beside the result of the part
    before.
    """

    step: fusions.Step
    inputs: Sequence[Tensor]


def parts_of(form: Form, node: Node) -> list[Part]:
    """The parts of a fused product, none where something about it is not known."""
    view, proto = form.view, form.view.protos[node]
    product = fusions.SPLIT_PRODUCTS[view.ops[node]]
    types = {view.dtypes[unit] for unit in view.units(node) if not view.slot(node, unit).is_fixed}
    if types != {datatypes.FLOAT} or not _runs_alone(proto, product):
        return []
    names = [name.decode() for name in value_of(proto, "fused_ops").list.s]
    if not names or any(name not in fusions.SPLIT_STEPS for name in names):
        return []
    steps = [product, *map(fusions.SPLIT_STEPS.__getitem__, names)]
    inputs = view.inputs(node)
    taken = [1 + product.arguments, *(step.arguments for step in steps[1:])]
    if sum(taken) != len(inputs):
        return []
    left = iter(inputs)
    parts = [
        Part(step, [next(left) for _ in range(count)])
        for step, count in zip(steps, taken, strict=True)
    ]
    return [
        part._replace(step=fusions.WIDE_BIAS) if _is_wide_bias(form, part) else part
        for part in parts
    ]


def _runs_alone(proto: Any, product: fusions.Step) -> bool:
    """Whether a fused product holds nothing but what its steps say, and has a product that runs
    without oneDNN.
    """
    if "_kernel" in proto.attr or has_channels_first(proto.attr):
        return False
    if value_of(proto, "filter_format").s not in (b"", fusions.FILTER_LAYOUT):
        return False
    if any(size != 1 for name in product.all_ones for size in value_of(proto, name).list.i):
        return False
    return not any(
        (more := value_of(proto, name)).i or more.list.i for name in fusions.HOLDING_MORE
    )


def _is_wide_bias(form: Form, part: Part) -> bool:
    """Whether a bias may have more dimensions than one: then it is added as the sum that oneDNN
    took it from.

    With channels last that is right for one dimension as well, so it is also done where the shape
    is unknown.
    """
    if part.step.op not in BIASES:
        return False
    node, port = part.inputs[0]
    if form.view.ops[node] in CONSTANTS:
        return len(value_of(form.view.protos[node], "value").tensor.tensor_shape.dim) != 1
    shape = shape_of(form.shapes, form.view.names[node], port)
    return shape is None or len(shape) != 1


def with_parts(form: Form, chains: Mapping[Node, Sequence[Part]]) -> Form:
    """The form with fused nodes split into their parts; each of these has the shape of the product."""
    if not chains:
        return form
    view = form.view
    fresh, number_of = (
        FreshNames(view.names, SPLIT_SUFFIX),
        {name: node for node, name in enumerate(view.names)},
    )
    reops: list[Reop] = []
    new: list[NewNode] = []
    models: dict[str, Node] = {}
    for node, parts in chains.items():
        proto = view.protos[node]
        waits = tuple(number_of[text[1:]] for text in proto.input if text.startswith("^"))
        before: tuple[Tensor, ...] = ()
        for part in parts:
            op, inputs, attributes = (
                part.step.op,
                (*before, *part.inputs),
                _attributes(part.step, proto),
            )
            if part is parts[-1]:
                gone = dict.fromkeys(
                    name for name in proto.attr if name[:1] != "_" or name in _TO_BE_MADE
                )
                reops.append(Reop(node, op, {**gone, **attributes}, inputs))
                break
            before = ((view.node_count + len(new), 0),)
            name = fresh.make(f"{view.names[node]}-{op}")
            new.append(NewNode(name, op, view.devices[node], inputs, waits, having(**attributes)))
            models[name] = node
    return form.then(Edits(tuple(reops), new=tuple(new)), models)


def _attributes(step: fusions.Step, proto: Any) -> dict[str, Any]:
    found = {
        name: proto.attr[source] for name, source in step.attributes.items() if source in proto.attr
    }
    if SCOPE_ATTR in proto.attr:
        found[SCOPE_ATTR] = proto.attr[SCOPE_ATTR]
    if SHAPES_ATTR in proto.attr and step.op not in NORMALIZING:  # these have further results
        found[SHAPES_ATTR] = proto.attr[SHAPES_ATTR]
    fixed = {name: attribute(**value) for name, value in step.fixed.items()}
    return {**found, **fixed, "T": attribute(type=datatypes.FLOAT)}
