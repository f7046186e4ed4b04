"""Ties: what must have one type, and what is done where the paint says otherwise.

*TensorLists.* The graph shows a list only as a handle of type variant that runs from op to op. Ops
connected by handles form a cluster, and agree on the type of its elements; values flow inside it
from writers to readers, along edges that the graph does not show. A list that leaves the graph is
denied as in TensorFlow: nodes that may be touched become deny before deny spreads, the others
afterwards. To spread danger through the list would be safer, but differs from TensorFlow.

*Loops.* The NextIteration, the Merge and the Enter of a loop's value have one precision.

*Maxima.* The gradient of a maximum looks for the maximum among the values that it was taken from,
where it is not found once it is rounded and they are not.

*Fused products* have one type, and a bias gradient that of the filter gradient beside it.
TensorFlow's CPU kernel of BiasAddGrad adds row after row in bfloat16; oneDNN's fused one does not,
so which bias gradients become 16 bit is decided last, and none does where oneDNN does not run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from amp_tf.errors import GraphError
from amp_tf.graph import datatypes
from amp_tf.graph.algorithms import connected
from amp_tf.graph.datatypes import Node, Unit
from amp_tf.graph.templates import Signature
from amp_tf.graph.view import Adjacency, GraphView
from amp_tf.oplists import table
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.kernels import beside_products
from amp_tf.painting.reasons import FORCED, Rule
from amp_tf.precision import Precision

#: units behind a comparison among which the values are looked for that a maximum was chosen from
FARTHEST = 64


def find_clusters(canvas: Canvas) -> None:
    """Gives nodes that share a TensorList of float32 one type: float32, if the list has users that
    are not known.

    Such nodes are a *cluster*. It is unsafe if a node of it may not be touched, or if its handle
    passes through a call, an argument or another place behind which unseen ops may use the list.
    The nodes that may not be touched follow in :func:`match_clusters`: as in TensorFlow, deny
    spreads from those of them that a setting puts on the deny list.

    Example (bfloat16)::

        list1 = TensorListReserve(shape, size) element_dtype=float32 shape_type=int32  float32 → f16
        allow1 = MatMul(x, x)                                                          f16
        write1 = TensorListSetItem(list1, index, allow1) element_dtype=float32         f16
        read1 = TensorListGetItem(write1, index, shape) element_dtype=float32          f16
        allow2 = MatMul(read1, x)                                                      f16
    """
    view = canvas.view
    of_lists = view.of_kinds(map(handles_lists, view.of_kind), np.bool_)
    if not of_lists.any():
        return
    units = {node: list_units(view, node) for node in np.flatnonzero(of_lists).tolist()}
    element = {node: unit for node, (unit, _) in units.items() if unit is not None}
    # Difference "call-boundary": loops and branches in functional form (While, If, Case) hand the
    # list to functions, and TensorFlow's pass, which meets them in lowered form, does not know them
    # as boundaries. Difference "list-of-lists": TensorFlow does not follow a list into another and
    # out again, as a loop in a loop stores what its gradient needs, and the readers of one list may
    # get another type than its writers.
    is_fixed = view.of_slots(
        np.array([slot.is_fixed for kind in view.of_kind for slot in kind.slots], np.bool_)
    )
    unseen = view.spread(canvas.calls | view.mask_with(table.TENSOR_LIST_BOUNDARIES))
    unseen |= view.spread(of_lists) & ~is_fixed
    is_unseen = unseen.tobytes()
    everywhere = np.ones(view.unit_count, np.uint8)
    seen: set[int] = set()
    pairs: list[tuple[Unit, Unit]] = []  # from each writer upstream of a reader to that
    for root in element:
        handle = units[root][1]
        if root in seen or handle is None or not canvas.processable[element[root]]:
            continue
        reached = canvas.flood([handle], everywhere, forward=True, backward=True)
        touched = {root, *(view.unit_nodes[unit] for unit in reached)}
        cluster = {node: element[node] for node in sorted(touched & element.keys())}
        seen.update(cluster)
        touchable = [unit for unit in cluster.values() if canvas.processable[unit]]
        if len(touchable) < len(cluster) or any(is_unseen[unit] for unit in reached):
            canvas.paint_deny(touchable, Rule.LIST_ESCAPES)
        canvas.clusters.append([*cluster.values()])
        writers = [node for node in cluster if view.ops[node] in table.TENSOR_LIST_WRITERS]
        for node in cluster if writers else ():
            handle = units[node][1]
            if (
                view.ops[node] in table.TENSOR_LIST_READERS
                and handle is not None
                and canvas.processable[handle]
            ):
                upstream = {
                    view.unit_nodes[each]
                    for each in canvas.flood([handle], canvas.processable, backward=True)
                }
                pairs += (
                    (cluster[writer], cluster[node]) for writer in writers if writer in upstream
                )
    if pairs:
        canvas.src, canvas.dst = np.concatenate(
            [[canvas.src, canvas.dst], np.array(pairs, np.int32).T], axis=1
        )
        canvas.edges = Adjacency(canvas.src, canvas.dst, view.unit_count)


def match_clusters(canvas: Canvas) -> None:
    """Gives all nodes that share a TensorList one paint: deny if any of them is deny, else allow if
    any is allow.

    Example (bfloat16, tensor lists after pass 2)::

        list1 = TensorListReserve(shape, size) element_dtype=float32 shape_type=int32
        allow1 = MatMul(x, x)                                                          f16
        write1 = TensorListSetItem(list1, index, allow1) element_dtype=float32
        read1 = TensorListGetItem(write1, index, shape) element_dtype=float32
        infer1 = Tanh(read1)                                                           f16 → float32
        allow2 = MatMul(infer1, x)                                                     f16
        deny1 = Exp(x)
        write2 = TensorListSetItem(write1, index, deny1) element_dtype=float32
        read2 = TensorListGetItem(write2, index, shape) element_dtype=float32
        infer2 = Tanh(read2)
        allow3 = MatMul(infer2, x)                                                     f16

    Example (bfloat16, tensor lists after pass 6)::

        list1 = TensorListReserve(shape, size) element_dtype=float32 shape_type=int32  float32 → f16
        allow1 = MatMul(x, x)                                                          f16
        write1 = TensorListSetItem(list1, index, allow1) element_dtype=float32         f16
        read1 = TensorListGetItem(write1, index, shape) element_dtype=float32          f16
        allow2 = MatMul(read1, x)                                                      f16
    """
    for units in canvas.clusters:
        denied, allowed = (
            [unit for unit in units if flags[unit]] for flags in (canvas.deny, canvas.allow)
        )
        others = [unit for unit in units if unit not in (denied or allowed)]
        if denied:
            escapes = any(canvas.rule[unit] == Rule.LIST_ESCAPES for unit in denied)
            rule = Rule.LIST_ESCAPES if escapes else Rule.LIST_DENIED
            canvas.unpaint_allow(units, rule)
            canvas.paint_deny(others, rule)
        elif allowed:
            canvas.paint_allow(others, Rule.LIST_FOLLOWS)
        for unit in others if denied or allowed else ():
            canvas.cause[unit] = (denied or allowed)[0]


def loop_units(canvas: Canvas) -> Iterator[Sequence[Unit]]:
    """Units of loops that must have one type: those of each NextIteration, and each Enter, and the
    Merges behind.
    """
    yield from _recurrent_units(canvas)
    edges = canvas.view.edges
    entering = edges.at(canvas.view.mask_with(("Enter",))[edges.src_node])
    merges = canvas.view.mask_with(table.LOOP_MERGES)[entering.dst_node]
    yield from entering.at(merges).rows("src_unit", "dst_unit")


def _recurrent_units(canvas: Canvas) -> Iterator[list[Unit]]:
    """For each NextIteration, the units that must have one type: its own, and those of the Merges
    that read it.
    """
    view = canvas.view
    for node in view.nodes_with(("NextIteration",)):
        unit = view.base[node] + view.signatures[node].outputs[0]
        yield [unit, *canvas.edges.fanouts(unit)]


def match_recurrent_edges(canvas: Canvas) -> None:
    """Paints a NextIteration and the Merges that read it allow if all these Merges are, else none
    of them.

    Difference "preserved-loop": TensorFlow paints a preserved NextIteration too.

    Raises:
        GraphError: something other than a Merge reads a NextIteration.

    Example (bfloat16, keep_float32=^next$)::

        start = Enter(bias) frame_name='f'
        state = Merge(start, next)
        turns = Enter(go) T=bool frame_name='f' is_constant=true
        again = LoopCond(turns)
        switch = Switch(state, again)                             f16 → float32
        allow1 = MatMul(switch:1, switch:1)                       f16
        next = NextIteration(allow1)
        done = Exit(switch)                                       f16 → float32
        allow2 = MatMul(done, x)                                  f16
        exact = Digamma(done)
    """
    links = list(_recurrent_units(canvas))
    for node in {canvas.view.unit_nodes[unit] for _, *readers in links for unit in readers}:
        if canvas.view.ops[node] != "Merge":
            raise GraphError(
                "reads a NextIteration, which only a Merge may do, and is a "
                f"{canvas.view.ops[node]}",
                where=canvas.view.where(node),
                fix="The loop is broken; export the graph again",
            )
    _match_loops(canvas, links)


def _match_loops(canvas: Canvas, links: Sequence[Sequence[Unit]]) -> None:
    """Gives what is linked one type: 16 bit if all Merges are and nothing else is locked, float32
    otherwise.
    """
    merges = canvas.view.mask_with(table.LOOP_MERGES)
    links = [link for link in links if canvas.is_float32[link[0]]]
    for loop in connected(itertools.chain.from_iterable(links), links):
        others = [unit for unit in loop if not canvas.allow[unit]]
        if any(canvas.locked[unit] or merges[canvas.view.unit_nodes[unit]] for unit in others):
            canvas.unpaint_allow(loop, Rule.LOOP_DENIED)
        else:
            canvas.paint_allow(others, Rule.LOOP_FOLLOWS)


def match_types(canvas: Canvas) -> None:
    """Makes types that must agree 16 bit together or not at all: of maxima, loops, fused products,
    bias gradients.

    Where a maximum is compared with the values that it was taken from, both are rounded, or
    neither. The gradient of a maximum compares so, and so do masks of the largest values, ``x >=
    tf.math.top_k(x, 2).values[:, -1:]``. For XLA neither is 16 bit: it leaves roundings out
    (``xla_allow_excess_precision``) where one op reads a value and not where another does, so that
    a maximum equals none of the values, and its gradient is 0 / 0.

    A value and its weighted mean share their rounding (:mod:`amp_tf.painting.needs`): where the
    value is float32, so are its products with the weights. The gradient of a softmax that is sure
    of one class was 2^-9 in place of 0.

    An Enter gets the type of the Merge that reads it, so that the cast stands before the loop.
    TensorFlow knows that a loop in a branch that is not taken does not run by the Enter that a
    Merge reads. With a cast in between, what waits for the loop's end waits for ever, or is lost.

    ``_FusedConv2D`` carries T and TArgs; where they differ oneDNN aborts the process. And oneDNN
    computes the bias gradient of a convolution with its filter's, in float32, if both have one
    type; another is float32.

    Difference "tied-types": in TensorFlow's pass a MaxPool3D is converted but its gradient, which
    has two types and kernels for both alike only, is not, and gives zeros; a cast stands between a
    loop's Enter and its Merge; and the bias gradient of a dense layer over 16,384 rows of ones is
    512.

    Example (bfloat16)::

        max1 = MaxPool3D(x)                         f16 → float32
        allow1 = Conv3D(max1, w)                    f16
        gradient1 = MaxPool3DGrad(x, max1, allow1)
        allow2 = Conv3D(gradient1, w)               f16

    Example (bfloat16)::

        allow1 = MatMul(x, x)                                     f16
        start = Enter(allow1) frame_name='f'                      f16 → float32
        state = Merge(start, next)
        turns = Enter(go) T=bool frame_name='f' is_constant=true
        again = LoopCond(turns)
        switch = Switch(state, again)
        deny1 = Exp(switch:1)
        next = NextIteration(deny1)
        done = Exit(switch)                                       f16
        allow2 = MatMul(done, x)                                  f16

    Example (bfloat16, infer_add=_FusedConv2D)::

        allow1 = MatMul(x, x)                                                 f16
        infer1 = _FusedConv2D(allow1, bias, bias) num_args=1 TArgs=[float32]  f16 → float32
        allow2 = MatMul(infer1, x)                                            f16

    Example (bfloat16)::

        allow1 = MatMul(x, x)                f16
        bias_gradient = BiasAddGrad(allow1)  f16 → float32
    """
    view = canvas.view
    if canvas.target.lists.table == table.CPU and canvas.target.precision is Precision.BFLOAT16:
        units = [
            unit
            for unit in canvas.float32_units(view.nodes_with(table.SUMS_IN_BFLOAT16))
            if canvas.allow[unit]
        ]
        fused = dict(
            beside_products(view, canvas.nodes_of(canvas.allow))
            if canvas.target.adds_in_float32
            else ()
        )
        lone = [
            unit
            for unit in units
            if view.unit_nodes[unit] not in fused and canvas.rule[unit] not in FORCED
        ]
        canvas.unpaint_allow(lone, Rule.SUMS)
    for node in view.nodes_with(table.COMPARING):
        _match_maximum(canvas, node)
    _match_loops(canvas, list(loop_units(canvas)))
    for term, value in canvas.centred:
        if not any(canvas.allow[unit] for unit in view.units(value)):
            canvas.unpaint_allow(
                [unit for unit in view.units(term) if canvas.rule[unit] not in FORCED], Rule.NEEDED
            )
    for node in view.nodes_with(table.FUSED_PRODUCTS):
        units = [
            unit
            for unit in view.units(node)
            if canvas.is_float32[unit] and not view.slot(node, unit).is_fixed
        ]
        if not all(canvas.allow[unit] for unit in units):
            canvas.unpaint_allow(units, Rule.TYPE_NOT_ALLOWED)


def _match_maximum(canvas: Canvas, node: Node) -> None:
    """Where a value is compared in float32 with what was chosen from it, makes what is rounded of
    one alone float32.
    """
    view = canvas.view
    inputs = view.edges.into(node)
    inputs = inputs.at(inputs.dst_position < 2)  # the values and the maximum, in one type
    if len(inputs) != 2:  # a broken graph may lack one
        return
    unit = int(inputs.dst_unit[0])
    if canvas.allow[unit] and not canvas.target.is_xla:
        return
    (origins, first), (others, second) = (
        _chosen(canvas, int(source)) for source in inputs.src_unit
    )
    is_gradient = view.ops[node] in table.MAXIMA_GRADIENTS
    if not is_gradient and not origins & others:
        return
    rounded = [*first, *second, unit]
    if is_gradient or not canvas.target.is_xla:
        here, there = _rounded_alone(first, second), _rounded_alone(second, first)
        rounded = (here or there) if bool(here) != bool(there) else []
    canvas.unpaint_allow(
        [unit for unit in rounded if canvas.rule[unit] not in FORCED], Rule.COMPARED
    )


def _chosen(canvas: Canvas, unit: Unit) -> tuple[set[Unit], dict[Unit, bool]]:
    """The units that gave the values from which one was chosen, as far as :data:`FARTHEST` reaches.

    With the converted units on the way from there, each with whether it reads float32, which it
    rounds.
    """
    view, seen, waiting = canvas.view, {unit}, [unit]
    origins: set[Unit] = set()
    converted: dict[Unit, bool] = {}
    while waiting and len(seen) < FARTHEST:
        unit = waiting.pop()
        sources = (
            canvas.edges.fanins(unit) if view.ops[view.unit_nodes[unit]] in table.CHOOSING else ()
        )
        if not sources:
            origins.add(unit)
        elif canvas.allow[unit]:
            converted[unit] = not all(canvas.allow[source] for source in sources)
        waiting += set(sources) - seen
        seen.update(sources)
    return origins, converted


def _rounded_alone(one: Mapping[Unit, bool], other: Mapping[Unit, bool]) -> list[Unit]:
    """The converted units that are on the way to one value alone; none if they round nothing."""
    alone = {unit: rounds for unit, rounds in one.items() if unit not in other}
    return [*alone] if any(alone.values()) else []


def handles_lists(signature: Signature) -> bool:
    """Whether an op makes, writes, reads or passes on a TensorList."""
    return "TensorList" in signature.op


def list_units(view: GraphView, node: Node) -> tuple[Unit | None, Unit | None]:
    """The units of a TensorList node that are the float32 type of the list's elements, and the
    list's handle.
    """
    first, end = view.base[node], view.base[node + 1]
    slots = [
        *zip(range(first, end), view.signatures[node].slots, view.dtypes[first:end], strict=True)
    ]
    elements = (
        unit
        for unit, slot, of in slots
        if of == datatypes.FLOAT and not slot.is_fixed and slot.index < 0
    )
    handles = (unit for unit, slot, of in slots if of == datatypes.VARIANT and slot.is_fixed)
    return next(elements, None), next(handles, None)
