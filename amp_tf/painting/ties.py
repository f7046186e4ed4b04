"""Ties: units that must have one type, and what changes where they are painted differently.

*Loops.* The NextIteration, the Merge and the Enter of a loop's value have one precision.

*Maxima.* The gradient of a maximum looks for it among the values that it was chosen from. It is not
found if either is rounded and the other is not.

*Fused products* have one type, and a bias gradient has that of the filter gradient beside it.
TensorFlow's CPU kernel of BiasAddGrad adds row after row in bfloat16, and oneDNN's fused one does
not. So bias gradients are decided last, and none becomes 16 bit where oneDNN does not run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from amp_tf.errors import GraphError
from amp_tf.graph.algorithms import connected
from amp_tf.graph.datatypes import Node, Unit
from amp_tf.oplists import table
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.decisions import Decision, Verdict
from amp_tf.painting.reasons import Code
from amp_tf.painting.remapper import beside_products
from amp_tf.precision import Precision

#: the number of units among which the values are searched that a maximum was chosen from
FARTHEST = 64


def loop_units(canvas: Canvas) -> Iterator[Sequence[Unit]]:
    """Yields sets of units that must have one type.

    A set has a NextIteration or an Enter, and the Merges that read it.
    """
    yield from _recurrent_units(canvas)
    view = canvas.view
    entering = view.edges.at(view.mask_with(("Enter",))[view.edges.src_node])
    merges = view.mask_with(table.LOOP_MERGES)[entering.dst_node]
    yield from entering.at(merges).rows("src_unit", "dst_unit")


def _recurrent_units(canvas: Canvas) -> Iterator[list[Unit]]:
    """Yields for each NextIteration the units that must have one type.

    They are its own, and those of the Merges that read it.
    """
    view = canvas.view
    for node in view.nodes_with(("NextIteration",)):
        unit = view.output_unit(node, 0)
        yield [unit, *canvas.links.fanouts(unit)]


def match_recurrent_edges(canvas: Canvas) -> Canvas:
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
    view = canvas.view
    links = list(_recurrent_units(canvas))
    for node in {view.unit_nodes[unit] for _, *readers in links for unit in readers}:
        if view.ops[node] != "Merge":
            raise GraphError(
                f"reads a NextIteration, which only a Merge may do, and is a {view.ops[node]}",
                where=view.where(node),
                fix="The loop is broken; export the graph again",
            )
    return _matched(canvas, links)


def _matched(canvas: Canvas, links: Iterable[Sequence[Unit]]) -> Canvas:
    """Gives linked units one type.

    It is 16 bit if all Merges are 16 bit and no other unit is locked, else float32.
    """
    merges = canvas.view.mask_with(table.LOOP_MERGES)
    node_of = canvas.view.unit_nodes
    links = [link for link in links if canvas.is_float32[link[0]]]
    denied: list[Unit] = []
    allowed: list[Unit] = []
    for loop in connected(itertools.chain.from_iterable(links), links):
        others = [unit for unit in loop if not canvas.allow[unit]]
        if any(canvas.locked[unit] or merges[node_of[unit]] for unit in others):
            denied += loop
        else:
            allowed += others
    canvas = canvas.leaving(denied, Code.LOOP_DENIED)
    return canvas.after(Decision(Verdict.ALLOW, allowed, Code.LOOP_FOLLOWS))


def match_bias_gradients(canvas: Canvas) -> Canvas:
    """Leaves bias gradients in float32 on CPUs in bfloat16, unless oneDNN computes them with the
    filter gradient beside them.

    oneDNN computes the bias gradient of a convolution with its filter's, in float32, if both have
    one type.

    Difference "tied-types": in TensorFlow's pass the bias gradient of a dense layer over 16,384
    rows of ones is 512.

    Example (bfloat16)::

        allow1 = MatMul(x, x)                f16
        bias_gradient = BiasAddGrad(allow1)  f16 → float32
    """
    target = canvas.target
    if target.lists.table != table.CPU or target.precision is not Precision.BFLOAT16:
        return canvas
    view = canvas.view
    fused: dict[Node, Node] = {}
    if target.adds_in_float32:
        fused = dict(beside_products(view, view.nodes_of(canvas.allow)))
    sums = [node for node in view.nodes_with(table.SUMS_IN_BFLOAT16) if node not in fused]
    return _leaving_unforced(canvas, canvas.float32_units(sums), Code.SUMS)


def _leaving_unforced(canvas: Canvas, units: Iterable[Unit], reason: Code) -> Canvas:
    """Takes allow paint from some units, except from those that a user forced."""
    return canvas.leaving([unit for unit in units if not canvas.is_forced(unit)], reason)


def match_maxima(canvas: Canvas) -> Canvas:
    """Rounds both or neither where a maximum is compared with the values that it was taken from.

    The gradient of a maximum compares so, and so do masks of the largest values, ``x >=
    tf.math.top_k(x, 2).values[:, -1:]``. For XLA both stay float32: XLA omits roundings
    (``xla_allow_excess_precision``) for some readers of a value and not for others, so that the
    maximum may equal none of the values, and its gradient is 0 / 0.

    Difference "tied-types": TensorFlow's pass converts a MaxPool3D but not its gradient, which then
    gives zeros. The gradient has two type attributes, and kernels only where both are the same.

    Example (bfloat16)::

        max1 = MaxPool3D(x)                         f16 → float32
        allow1 = Conv3D(max1, w)                    f16
        gradient1 = MaxPool3DGrad(x, max1, allow1)
        allow2 = Conv3D(gradient1, w)               f16
    """
    for node in canvas.view.nodes_with(table.COMPARING):
        canvas = _leaving_unforced(canvas, _rounded_unlike(canvas, node), Code.COMPARED)
    return canvas


def _rounded_unlike(canvas: Canvas, node: Node) -> list[Unit]:
    """Returns the units to leave in float32 where a value is compared with a choice.

    The value is compared with one chosen from it, and one of the two is rounded without the other.
    """
    view = canvas.view
    is_xla = canvas.target.is_xla
    unit = view.input_unit(node, 0)
    if canvas.allow[unit] and not is_xla:
        return []
    # the values and the maximum, in one type
    sources = view.inputs(node)[:2]
    values, maximum = (view.output_unit(source, port) for source, port in sources)
    first_sources, first = _chosen(canvas, values)
    second_sources, second = _chosen(canvas, maximum)
    if first_sources.isdisjoint(second_sources):
        return []
    is_gradient = view.ops[node] in table.MAXIMA_GRADIENTS
    if is_xla and not is_gradient:
        return [*first, *second, unit]
    return [*_rounded_alone(first, second), *_rounded_alone(second, first)]


def _chosen(canvas: Canvas, unit: Unit) -> tuple[set[Unit], dict[Unit, bool]]:
    """Searches backwards for the units whose values a unit was chosen from.

    Returns the first :data:`FARTHEST` of them, or a few more, and the converted units among them,
    each with whether it rounds: it does if it reads float32.
    """
    view = canvas.view
    converted: dict[Unit, bool] = {}
    seen = {unit}
    waiting = [unit]
    while waiting and len(seen) < FARTHEST:
        unit = waiting.pop()
        is_choice = view.ops[view.unit_nodes[unit]] in table.CHOOSING
        sources = canvas.links.fanins(unit) if is_choice else []
        if len(sources) and canvas.allow[unit]:
            converted[unit] = not canvas.allow[sources].all()
        waiting += set(sources) - seen
        seen.update(sources)
    return seen, converted


def _rounded_alone(one: Mapping[Unit, bool], other: Mapping[Unit, bool]) -> list[Unit]:
    """Returns the converted units on the way to one value alone; none if they round nothing."""
    alone = {unit: rounds for unit, rounds in one.items() if unit not in other}
    return [*alone] if any(alone.values()) else []


def match_loop_entries(canvas: Canvas) -> Canvas:
    """Gives an Enter the type of the Merge that reads it, so that the cast stands before the loop.

    TensorFlow sees from the Enter that a Merge reads whether a loop in a branch runs at all. With a
    cast in between it does not see that, and nodes that wait for the end of a loop in a branch not
    taken wait for ever, or are lost.

    Difference "tied-types": in TensorFlow's pass a cast stands between an Enter and its Merge.

    Example (bfloat16)::

        allow1 = MatMul(x, x)                                     f16
        start = Enter(allow1) frame_name='f'                      f16 → float32
        state = Merge(start, next)
        turns = Enter(go) T=bool frame_name='f' is_constant=true
        again = LoopCond(turns)
        switch = Switch(state, again)
        deny1 = L2Loss(switch:1)
        next = NextIteration(deny1)
        done = Exit(switch)                                       f16
        allow2 = MatMul(done, x)                                  f16
    """
    return _matched(canvas, loop_units(canvas))


def match_weighted_means(canvas: Canvas) -> Canvas:
    """Leaves products of a value and weights in float32 if the value is, and their mean is
    subtracted from it.

    The value and the mean then share their rounding
    (:class:`amp_tf.painting.value_graph.Centring`). Otherwise the gradient of a softmax that is
    sure of one class is 2^-9 in place of 0.

    Difference "tied-types": TensorFlow rounds one of the two.

    Example (bfloat16)::

        allow1 = MatMul(x, x)                       f16
        weighted = Mul(gradient, allow1)            f16 → float32
        total = Sum(weighted, axes) keep_dims=true
        centred = Sub(gradient, total)
        scaled = Mul(centred, allow1)               f16
        allow2 = MatMul(scaled, x)                  f16
    """
    assert canvas.values is not None
    view = canvas.view
    for centring in canvas.values.centrings:
        for product, value in centring.weighted:
            if not canvas.allow[view.units(value)].any():
                canvas = _leaving_unforced(canvas, view.units(product), Code.NEEDED)
    return canvas


def match_fused_products(canvas: Canvas) -> Canvas:
    """Leaves a fused product in float32 unless all its types are 16 bit.

    ``_FusedConv2D`` carries T and TArgs; where they differ oneDNN aborts the process.

    Example (bfloat16, infer_add=_FusedConv2D)::

        allow1 = MatMul(x, x)                                                 f16
        infer1 = _FusedConv2D(allow1, bias, bias) num_args=1 TArgs=[float32]  f16 → float32
        allow2 = MatMul(infer1, x)                                            f16
    """
    view = canvas.view
    left: list[Unit] = []
    for node in view.nodes_with(table.FUSED_PRODUCTS):
        units = canvas.float32_units([node])
        free = [unit for unit in units if not view.slot(node, unit).is_fixed]
        if not canvas.allow[free].all():
            left += free
    return canvas.leaving(left, Code.TYPE_NOT_ALLOWED)
