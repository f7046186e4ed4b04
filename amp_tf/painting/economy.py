"""Takes the paint off what is not faster in 16 bit: the cost model of a CPU.

Two questions, in this order. *Which ops around the products should be 16 bit?* An op is faster in one of the types,
and a cast is paid wherever the types of neighbours differ; the cheapest choice for all of them at once is a minimum
cut (:class:`amp_tf.graph.algorithms.Network`). *Does each island pay?* An island is a set of connected 16-bit nodes; if
what it saves is less than the casts at its border, all of it stays in float32. So does an island without a product:
what is left to win there is not worth the rounding. What runs in a loop is weighed as often as the loop is expected to
iterate, so that a cast before a loop costs little beside what it saves in there.

Both need static shapes. What is not known is taken to be as large as the median of what is; where nothing is known,
only the first question is asked.

It runs only where amp_tf chooses the precision: naming one means all that the lists convert. The exact cut of
ResNet-50's training graph takes 70 ms in plain Python. Gradient ops that oneDNN computes from what their forward op
left behind must have its type. A bias gradient goes with the filter gradient that reads the same tensor, and a bias
and its activation with the product before them, because TensorFlow computes them in one kernel.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import numpy as np

from amp_tf.graph.algorithms import SINK, SOURCE, UNBOUNDED, Network, connected
from amp_tf.graph.lifetimes import Lifetimes
from amp_tf.graph.sizes import AttributeShapes, Shape, Shapes, element_count
from amp_tf.oplists.cost_tables import Pair
from amp_tf.oplists.table import PICKING, PINNED, VARIABLE_VALUES
from amp_tf.oplists.targets import XLA_WIDENS
from amp_tf.painting.canvas import Canvas, units_of
from amp_tf.painting.kernels import drop_slow_kernels, drop_unmatched_pairs, fused_with_products, kernel_pairs
from amp_tf.painting.loops import recurrent_units
from amp_tf.painting.prices import Prices, Runs
from amp_tf.painting.reasons import FORCED, Balance, Rule

_UNITS_PER_NS = 1000  # capacities are whole numbers: picoseconds
_DEFAULT_ELEMENTS = 65_536
#: ns that a byte at the peak is worth where memory is weighed: for a value of two bytes less, more than any op loses.
_NS_PER_BYTE = 16.0
_BYTES_SAVED = 2  #: by an element in 16 bit
_HALF = 2  #: of the peak: where less is live in float32, the peak never comes to be once all is halved


@dataclasses.dataclass(frozen=True)
class _Port:
    """An output port at which a cast may be needed, which would run so many times.

    Where the weights are stored in 16 bit, what all readers of a variable may read in 16 bit needs no cast.
    """

    node: int
    source: int
    readers: tuple[int, ...]
    elements: float
    runs: float
    is_stored: bool = False

    def casts(self, prices: Prices) -> Pair:
        """What a cast to float32 and one to 16 bit take, in ns."""
        return (0.0, 0.0) if self.is_stored else prices.casts(self.elements)


def drop_unprofitable(canvas: Canvas) -> None:
    """Takes allow paint off units that are cheaper in float32.

    Three kinds stay as they are in the first step. Products whose shapes nobody knows, and all where there are loops of
    graph nodes; what was folded into a convolution, and that convolution; and the entries and exits of loops: a cast of
    a value that does not change belongs outside. What TensorFlow computes together with another product is chosen with
    it. What the user forces stays in any case, and where no op pays, what the user asks for.

    Example (auto)::

        x = Placeholder() shape=[512, 512]
        allow1 = MatMul(x, x)               f16
        infer1 = Sigmoid(allow1)            f16 → float32
        infer2 = Sigmoid(infer1)            f16 → float32
        allow2 = MatMul(infer2, x)          f16
        small = Placeholder() shape=[8, 8]
        allow3 = MatMul(small, small)       f16 → float32
    """
    ties: list[Sequence[int]] = [*(list(cluster.values()) for cluster in canvas.clusters), *recurrent_units(canvas)]
    if canvas.resolution.asked is not None:
        _drop_unasked(canvas, canvas.resolution.asked, ties)
        return
    shapes = AttributeShapes(canvas.view.protos) if canvas.shapes is None else canvas.shapes
    drop_slow_kernels(canvas, shapes)
    drop_unmatched_pairs(canvas)
    prices = Prices(canvas.view, shapes, canvas.resolution.costs)
    ports, sizes_are_known = _find_ports(canvas, shapes, prices.runs)
    sizes = _unit_sizes(canvas, ports)
    computed_with = fused_with_products(canvas)
    products = _products(canvas)
    ties = [*ties, *kernel_pairs(canvas), *computed_with.items(), *products.values(), *_joined(canvas, prices)]
    tied = connected(dict.fromkeys(itertools.chain.from_iterable(ties)), ties)
    ties = [sorted(units) for units in tied if any(unit in sizes for unit in units)]
    fused = [unit for node in canvas.folded.fused for unit in canvas.view.units(node) if canvas.allow[unit]]
    sizes.update(dict.fromkeys([*fused, *computed_with], 0.0))
    relief = _memory_relief(canvas, shapes) if canvas.resolution.weighs_memory else {}
    may_choose = sizes_are_known and "Enter" not in canvas.view.ops and not canvas.resolution.weighs_memory
    free = _free_products(canvas, products, prices, {*fused}) if may_choose else {}
    left = find_cheaper_in_float32(canvas, ports, sizes, ties, free, {*fused}, prices, relief)
    canvas.unpaint_allow(left, Rule.DOES_NOT_PAY)
    groups = connected(left, [(port.source, *port.readers) for port in ports])
    _note(canvas, groups, _balances(canvas, groups, ports, sizes, prices))
    if sizes_are_known:
        islands = find_islands(canvas, ports, ties)
        for island, balance in zip(islands, _balances(canvas, islands, ports, sizes, prices), strict=True):
            has_product = any(canvas.on_allow[unit] for unit in island)
            relieves = sum(relief.get(unit, 0.0) for unit in island)
            pays = balance.in_f16 < balance.in_float32 + relieves
            if not (pays and (has_product or relieves)):
                unforced = [unit for unit in island if canvas.rule[unit] not in FORCED]
                canvas.unpaint_allow(unforced, Rule.DOES_NOT_PAY)
                _note(canvas, [unforced], [balance])


def _drop_unasked(canvas: Canvas, asked: Container[str], ties: Iterable[Sequence[int]]) -> None:
    """Takes allow paint off all but forced nodes and some ops, where no op pays."""
    ops, node_of = canvas.view.ops, canvas.node_of
    painted = np.flatnonzero(canvas.allow).tolist()
    kept = {unit for unit in painted if canvas.rule[unit] in FORCED or ops[node_of[unit]] in asked}
    kept.update(*(tie for tie in ties if not kept.isdisjoint(tie)))
    left = [unit for unit in painted if unit not in kept]
    canvas.unpaint_allow(left, Rule.DOES_NOT_PAY)
    canvas.weighed.update(dict.fromkeys(left, XLA_WIDENS))


def _products(canvas: Canvas) -> dict[int, list[int]]:
    """The painted products, each with its painted units.

    A product has one precision: the types of a fused one, T and TArgs, must change together or it aborts the process.
    """
    units_of_node: dict[int, list[int]] = {}
    for unit in units_of(canvas.allow & canvas.on_allow):
        units_of_node.setdefault(canvas.node_of[unit], []).append(unit)
    return units_of_node


def _joined(canvas: Canvas, prices: Prices) -> Iterator[list[int]]:
    """The painted units of nodes that TensorFlow computes as one if they have one type."""
    for pair in prices.joined:
        units = [unit for node in pair for unit in canvas.view.units(node)]
        if canvas.allow[units].all():
            yield units


def _free_products(
    canvas: Canvas, products: Mapping[int, list[int]], prices: Prices, fused: set[int]
) -> dict[int, float]:
    """The units of products whose type may be chosen, with what they save in 16 bit, in ns, at the first unit of each.

    Args:
        fused: painted units that are computed together with a product; such products are not free.
    """
    edges = canvas.view.edges
    sources = edges.rows("src_node", "dst_unit") if fused else ()
    read = {source for source, reader in sources if reader in fused}
    free: dict[int, float] = {}
    for node, units in products.items():
        pair = prices.product(node)
        if node not in read and pair is not None and not any(canvas.rule[unit] in FORCED for unit in units):
            free.update(dict.fromkeys(units, 0.0))
            free[units[0]] = pair[0] - pair[1]
    return free


def _find_ports(canvas: Canvas, shapes: Shapes, runs: Runs) -> tuple[list[_Port], bool]:
    """The float32 ports that touch paint, and whether the sizes of most of them are known."""
    view, allow, edges = canvas.view, canvas.allow, canvas.view.edges
    touched = canvas.is_float32[edges.src_unit] & (allow[edges.src_unit] | allow[edges.dst_unit])
    edges = edges.at(touched.astype(np.bool_))
    readers: dict[tuple[int, int, int], list[int]] = {}
    for node, port, source, reader in edges.rows("src_node", "src_port", "src_unit", "dst_unit"):
        readers.setdefault((node, port, source), []).append(reader)
    known: dict[int, Sequence[Shape | None]] = {}
    counts = []
    for node, port, _ in readers:
        if node not in known:
            known[node] = shapes.output_shapes(view.names[node])
        counts.append(element_count(known[node][port]) if port < len(known[node]) else None)
    sizes = [count for count in counts if count is not None]
    typical = statistics.median(sizes) if sizes else _DEFAULT_ELEMENTS
    stored = _stored_reads(canvas)
    ports = [
        _Port(node, source, tuple(ends), typical if count is None else count, runs.of_readers[node], node in stored)
        for ((node, _, source), ends), count in zip(readers.items(), counts, strict=True)
    ]
    return ports, 2 * len(sizes) > len(ports)


def _stored_reads(canvas: Canvas) -> Container[int]:
    """The nodes that read variables for nodes that may be 16 bit, and no others, where such variables will be too."""
    if not canvas.resolution.stores_weights:
        return ()
    edges = canvas.view.edges
    in_float32 = edges.src_node[canvas.allow[edges.dst_unit] == 0]
    return set(canvas.view.nodes_with(VARIABLE_VALUES)).difference(in_float32.tolist())


def _memory_relief(canvas: Canvas, shapes: Shapes) -> dict[int, float]:
    """What painted units save at the peak, in ns: those whose results are live where at least half of it is."""
    lifetimes = Lifetimes.of(canvas.view, shapes)
    live = lifetimes.bytes_over_time(canvas.view.dtypes)
    crowded = np.flatnonzero(live * _HALF >= live.max(initial=0.0))
    relief: dict[int, float] = {}
    for tensor, elements in lifetimes.elements.items():
        unit = lifetimes.units[tensor]
        first, last = lifetimes.span(tensor)
        if canvas.allow[unit] and np.searchsorted(crowded, first) < np.searchsorted(crowded, last, side="right"):
            relief[unit] = relief.get(unit, 0.0) + elements * _BYTES_SAVED * _NS_PER_BYTE
    return relief


def _unit_sizes(canvas: Canvas, ports: Iterable[_Port]) -> dict[int, float]:
    """For each painted unit, the size of the largest tensor that it writes or reads as a whole."""
    view, node_of = canvas.view, canvas.node_of
    sizes: dict[int, float] = {}
    for port in ports:
        whole = [unit for unit in port.readers if view.ops[node_of[unit]] not in PICKING]
        for unit in (port.source, *whole):
            if canvas.allow[unit]:
                sizes[unit] = max(sizes.get(unit, 0.0), port.elements)
    return sizes


def _is_flexible(canvas: Canvas, unit: int) -> bool:
    """Whether the unit may have either type: painted, not a product, not an entry or exit of a loop."""
    op = canvas.view.ops[canvas.node_of[unit]]
    return bool(canvas.allow[unit] and not canvas.on_allow[unit]) and op not in PINNED


def _saved(canvas: Canvas, unit: int, sizes: Mapping[int, float], prices: Prices) -> float:
    """What a unit that is not a product saves in 16 bit, in ns."""
    in_float32, in_f16 = prices.op(canvas.node_of[unit], sizes.get(unit, 0.0))
    return in_float32 - in_f16


def find_cheaper_in_float32(
    canvas: Canvas,
    ports: list[_Port],
    sizes: dict[int, float],
    ties: list[Sequence[int]],
    free: Mapping[int, float],
    pinned: set[int],
    prices: Prices,
    relief: Mapping[int, float],
) -> list[int]:
    """The units that are cheaper in float32, all choices taken together.

    Args:
        free: units of products that may have either type, with what each saves in 16 bit, in ns.
        pinned: units that stay as they are.
        relief: what units save in memory, in ns.
    """
    network = Network()
    vertex_of: dict[int, int] = {}

    def may_be_either(unit: int) -> bool:
        return unit not in pinned and (unit in free or _is_flexible(canvas, unit))

    for tied in ties:  # units that must agree are one vertex
        if all(may_be_either(unit) for unit in tied):
            vertex_of.update(dict.fromkeys(tied, network.add_vertex()))
    fixed = {unit for tied in ties for unit in tied if unit not in vertex_of}
    for unit in sizes:
        if unit not in vertex_of and unit not in fixed and may_be_either(unit):
            vertex_of[unit] = network.add_vertex()
    for unit, vertex in vertex_of.items():
        saved = free[unit] if unit in free else _saved(canvas, unit, sizes, prices)
        saved += relief.get(unit, 0.0)
        capacity = round(abs(saved) * _UNITS_PER_NS)
        network.add_edge(*((SOURCE, vertex) if saved > 0 else (vertex, SINK)), capacity)
    for port in ports:
        ends = [port.source, *port.readers]
        vertices = [vertex_of.get(unit, SOURCE if canvas.allow[unit] else SINK) for unit in ends]
        if any(vertex > SINK for vertex in vertices):
            _add_port(network, vertices[0], vertices[1:], port.casts(prices))
    is_f16 = network.source_side()
    return [unit for unit, vertex in vertex_of.items() if not is_f16[vertex]]


def _add_port(network: Network, source: int, readers: list[int], casts: Pair) -> None:
    """Charges one cast if the source and any reader differ; all readers of one kind share it."""
    up, down = (round(ns * _UNITS_PER_NS) for ns in casts)
    if SINK in readers:  # a float32 reader: a 16-bit source pays, whatever the other readers are
        network.add_edge(source, SINK, up)
    elif len(readers) == 1:
        network.add_edge(source, readers[0], up)
    else:
        shared = network.add_vertex()
        network.add_edge(source, shared, up)
        for reader in readers:
            network.add_edge(shared, reader, UNBOUNDED)
    if SOURCE in readers:
        network.add_edge(SOURCE, source, down)
    elif len(readers) == 1:
        network.add_edge(readers[0], source, down)
    else:
        shared = network.add_vertex()
        network.add_edge(shared, source, down)
        for reader in readers:
            network.add_edge(reader, shared, UNBOUNDED)


def find_islands(canvas: Canvas, ports: Iterable[_Port], ties: Iterable[Sequence[int]]) -> list[list[int]]:
    """The sets of painted units that are connected by 16-bit edges, by belonging to one product, or by ties."""
    by_edges = [(port.source, *port.readers) for port in ports if canvas.allow[port.source]]
    return connected(units_of(canvas.allow), [*by_edges, *_products(canvas).values(), *ties])


def _balances(
    canvas: Canvas, groups: list[list[int]], ports: list[_Port], sizes: dict[int, float], prices: Prices
) -> list[Balance]:
    """For each group what it takes in 16 bit and in float32, the rest of the graph as it is painted.

    In 16 bit a product of unknown size takes no time at all. Groups that read one cast share it.
    """
    group_of = {unit: number for number, group in enumerate(groups) for unit in group}
    in_float32, in_f16 = [0.0] * len(groups), [0.0] * len(groups)
    for number, group in enumerate(groups):
        for first, second in _node_costs(canvas, group, sizes, prices):
            in_float32[number] += first
            in_f16[number] += second
    for port in ports:
        home = group_of.get(port.source)
        up_once, down_once = port.casts(prices)
        up, down = port.runs * up_once, port.runs * down_once
        outside = [bool(canvas.allow[reader]) for reader in port.readers if group_of.get(reader, -1) != home]
        if home is not None:
            if not all(outside):
                in_f16[home] += up
            if any(outside):
                in_float32[home] += down
            continue
        served = {group_of[reader] for reader in port.readers if reader in group_of}
        for number in served:
            if canvas.allow[port.source]:
                in_float32[number] += up / len(served)
            else:
                in_f16[number] += down / len(served)
    return [Balance(*pair) for pair in zip(in_f16, in_float32, strict=True)]


def _note(canvas: Canvas, groups: list[list[int]], balances: list[Balance]) -> None:
    for group, balance in zip(groups, balances, strict=True):
        canvas.weighed.update(dict.fromkeys(group, balance))


def _node_costs(
    canvas: Canvas, group: list[int], sizes: dict[int, float], prices: Prices
) -> Iterator[tuple[float, float]]:
    """What each node of a group takes by itself in float32 and in 16 bit, all its runs together, in ns."""
    seen = set()
    for unit in group:
        node = canvas.node_of[unit]
        if node in seen:
            continue
        seen.add(node)
        often = prices.runs.of_nodes[node]
        if not canvas.on_allow[unit]:
            once = prices.op(node, sizes.get(unit, 0.0))
        else:
            once = prices.product(node) or (math.inf, 0.0)
        yield often * once[0], often * once[1]
