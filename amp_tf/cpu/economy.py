"""The cost model: leaves the nodes in float32 that are not faster in 16 bit on a CPU.

Each op is faster in one of the types, and an edge between types costs a cast. The cheapest choice
for all nodes together is a minimum cut (:class:`amp_tf.graph.algorithms.Network`). Nodes in a loop
count as often as the loop is expected to iterate, so the cast of a loop-invariant value stands
before the loop. Nodes that TensorFlow computes in one kernel have one type: a bias gradient and the
filter gradient that reads the same tensor; a product and the bias, residual sum and activation
behind it. A set of connected 16-bit nodes without a product stays in float32, because its gain is
not worth the rounding.

All this needs static shapes. A tensor of unknown shape counts as large as the median of the known
ones, and a product of unknown shape is 16 bit.

Small batches gain less than large ones, because casts of weights cost the same. So a graph for
several batch sizes is weighed at the smallest and at the largest in turns, until neither leaves
more nodes in float32. The rest is faster in 16 bit at both sizes, and at those between, because
costs grow with the batch.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from amp_tf.cpu.prices import Prices
from amp_tf.graph.algorithms import SINK, SOURCE, UNBOUNDED, Network, connected, numbers_of
from amp_tf.graph.datatypes import Node, Port, Unit, UnitMask, indices
from amp_tf.graph.sizes import KnownShapes, Lifetimes, Shapes, element_count, shape_of
from amp_tf.oplists.cost_tables import Pair
from amp_tf.oplists.table import PICKING, VARIABLE_VALUES
from amp_tf.oplists.targets import XLA_WIDENS
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.decisions import Decision, Verdict
from amp_tf.painting.eligibility import paired_maxima
from amp_tf.painting.reasons import Balance, Rule
from amp_tf.painting.remapper import computed_with_products, costs_nothing

_AS_IT_IS: Mapping[int, Shapes] = MappingProxyType({})
_UNITS_PER_NS = 1000  # capacities are whole numbers: picoseconds
_DEFAULT_ELEMENTS = 65_536
_UNMATCHED = "a pooling and its gradient are slow in two types, and one of them stays in float32"
#: The ns that a byte at the peak is worth if memory is weighed. Two bytes saved are worth more than
#: any op loses on an element.
_NS_PER_BYTE = 16.0
_BYTES_SAVED = 2  #: by an element in 16 bit
#: a time at which less than half the peak is live in float32 is no peak once all tensors are halved
_HALF = 2


class _Port(NamedTuple):
    """An output port that may need a cast to float32 or to 16 bit.

    Attributes:
        source: the unit of the port.
        readers: the units that read it.
        elements: the number of elements of its tensor.
        casts: the times of a cast to float32 and of one to 16 bit, for all runs together.
    """

    source: Unit
    readers: Sequence[Unit]
    elements: float
    casts: Pair


def drop_unprofitable(canvas: Canvas, at_batch: Mapping[int, Shapes] = _AS_IT_IS) -> Canvas:
    """Takes allow paint off units that are cheaper in float32
    (:func:`amp_tf.painting.paint.weigh`).

    Args:
        at_batch: the shapes for each batch size that is weighed; empty for the graph's own shapes.
    """
    ties: list[Sequence[Unit]] = [*canvas.clusters]
    asked = canvas.subject.resolution.asked
    if asked is not None:
        return _leave_unasked(canvas, asked, ties)
    for nodes in paired_maxima(canvas.view):
        ties.append([canvas.view.output_unit(node, 0) for node in nodes])
        canvas = _match_pair(canvas, ties[-1])
    if not at_batch:
        own = canvas.subject.shapes
        at_batch = {0: KnownShapes.of_nodes(canvas.view) if own is None else own}
    # Batch sizes take turns until each has been weighed without a change.
    settled = 0
    for batch, shapes in itertools.cycle(at_batch.items()):
        if settled == len(at_batch):
            break
        before = canvas.allow
        canvas = _drop_at(canvas, ties, shapes, batch)
        settled += 1
        if (canvas.allow != before).any():
            settled = 1
    return canvas


def _leave_unasked(canvas: Canvas, asked: frozenset[str], ties: Iterable[Sequence[Unit]]) -> Canvas:
    """Leaves all but forced nodes and ops that the user asks for in float32.

    It is for CPUs on which no op is faster in 16 bit. Units tied to the ones that stay 16 bit stay,
    too.
    """
    painted = indices(canvas.allow)
    wanted = canvas.view.units_with(asked)
    kept = {unit for unit in painted if wanted[unit] or canvas.is_forced(unit)}
    tied: list[Unit] = []
    for tie in ties:
        if not kept.isdisjoint(tie):
            tied += tie
    kept.update(tied)
    left = [unit for unit in painted if unit not in kept]
    return canvas.after(_not_faster(left, XLA_WIDENS))


def _not_faster(units: Sequence[Unit], weighed: Balance | str) -> Decision:
    return Decision(Verdict.LEAVE, units, Rule.DOES_NOT_PAY, weighed=weighed)


def _drop_at(canvas: Canvas, ties: Iterable[Sequence[Unit]], shapes: Shapes, batch: int) -> Canvas:
    """Takes allow paint off units that are cheaper in float32, and off the islands that are left.

    Args:
        canvas: the painted graph.
        ties: units that must agree.
        shapes: the shapes for a batch size.
        batch: that size, for the reasons.
    """
    weighing = Weighing(canvas, ties, shapes)
    for find in (find_cheaper_in_float32, find_islands):
        groups = find(weighing, canvas.allow)
        allow = canvas.allow.copy()
        for group in groups:
            allow[group] = False
        decisions = []
        for group, balance in zip(groups, weighing.balances(groups, allow), strict=True):
            decisions.append(_not_faster(group, dataclasses.replace(balance, batch=batch)))
        canvas = canvas.after(*decisions)
    return canvas


def _match_pair(canvas: Canvas, pair: Sequence[Unit]) -> Canvas:
    """Leaves a maximum and its gradient in float32 where one of them is.

    Their 16-bit kernels are fast only if both are 16 bit: a pair of two types takes fifty times as
    long.
    """
    painted = [unit for unit in pair if canvas.allow[unit] and not canvas.is_forced(unit)]
    if len(painted) == 1 and not canvas.allow[pair].all():
        return canvas.after(_not_faster(painted, _UNMATCHED))
    return canvas


class Weighing:
    """The figures by which a painted graph is weighed.

    Attributes:
        canvas: the painted graph before the weighing.
        ports: the float32 ports that a painted unit writes or reads.
        sizes: for each painted unit, the elements of the largest tensor that it writes or reads
            whole.
        products: the painted products, each with its painted units. A product has one precision:
            the types of a fused one, T and TArgs, must change together or it aborts the process.
        ties: the sets of units that must have one type.
        relief: the memory that painted units save, in ns: those whose results are live when at
            least half the peak is.
    """

    def __init__(self, canvas: Canvas, ties: Iterable[Sequence[Unit]], shapes: Shapes) -> None:
        view = canvas.view
        resolution = canvas.subject.resolution
        self.canvas = canvas
        self.prices = Prices(view, shapes, resolution.costs)
        self.ports = _find_ports(canvas, shapes, self.prices)
        self.sizes = _find_sizes(canvas, self.ports)
        self.products: dict[Node, list[Unit]] = {}
        for unit in indices(canvas.allow & canvas.on_allow):
            self.products.setdefault(view.unit_nodes[unit], []).append(unit)
        links: list[Sequence[Unit]] = list(ties)
        # The nodes that TensorFlow computes together have the type of their product.
        is_f16 = view.nodes_of(canvas.allow)
        for node, product in computed_with_products(view, is_f16, shapes).items():
            if is_f16[node]:
                links.append((view.base[node], view.base[product]))
                if costs_nothing(view, node, product):
                    self.sizes[view.base[node]] = 0.0
        links += self.products.values()
        self.ties: list[list[Unit]] = []
        linked = dict.fromkeys(itertools.chain.from_iterable(links))
        for tied in connected(linked, links):
            if not self.sizes.keys().isdisjoint(tied):
                self.ties.append(sorted(tied))
        self.relief: dict[Unit, float] = {}
        if resolution.weighs_memory:
            self.relief = _memory_relief(canvas, shapes)

    def times(self, unit: Unit) -> Pair:
        """Returns the times of all runs of a unit's node.

        They are (inf, 0) for products of unknown shape.
        """
        node = self.canvas.view.unit_nodes[unit]
        runs = self.prices.runs.of_nodes[node]
        if self.canvas.on_allow[unit]:
            once = self.prices.product(node) or (math.inf, 0.0)
        else:
            once = self.prices.op(node, self.sizes.get(unit, 0.0))
        in_float32, in_f16 = once
        return runs * in_float32, runs * in_f16

    def saved(self, unit: Unit) -> float:
        """Returns the time that a unit saves in 16 bit, in ns; infinity for a forced unit.

        A product with several units saves its time at the first one.
        """
        if self.canvas.is_forced(unit):
            return math.inf
        relief = self.relief.get(unit, 0.0)
        node = self.canvas.view.unit_nodes[unit]
        if node in self.products and self.products[node][0] != unit:
            return relief
        in_float32, in_f16 = self.times(unit)
        return in_float32 - in_f16 + relief

    def balances(self, groups: Sequence[Sequence[Unit]], allow: UnitMask) -> list[Balance]:
        """Returns the times of each group in 16 bit and in float32, with casts at its border.

        Groups that read the same cast share its time.

        Args:
            allow: the paint of the rest of the graph, without the groups.
        """
        in_float32 = [0.0] * len(groups)
        in_f16 = [0.0] * len(groups)
        group_of = numbers_of(groups)
        node_of = self.canvas.view.unit_nodes
        for number, group in enumerate(groups):
            first_units = {node_of[unit]: unit for unit in reversed(group)}
            for unit in first_units.values():
                wide, narrow = self.times(unit)
                in_float32[number] += wide
                in_f16[number] += narrow
        for port in self.ports:
            up, down = port.casts
            home = group_of.get(port.source)
            # The casts of a group's result for readers outside it.
            if home is not None:
                others = [unit for unit in port.readers if group_of.get(unit) != home]
                is_narrow = allow[others]
                if not is_narrow.all():
                    in_f16[home] += up
                if is_narrow.any():
                    in_float32[home] += down
                continue
            # The cast of a tensor for the groups that read it.
            served = {group_of[reader] for reader in port.readers if reader in group_of}
            for number in served:
                if allow[port.source]:
                    in_float32[number] += up / len(served)
                else:
                    in_f16[number] += down / len(served)
        return list(map(Balance, in_f16, in_float32))


def _find_ports(canvas: Canvas, shapes: Shapes, prices: Prices) -> list[_Port]:
    """Returns the float32 ports that a painted unit writes or reads."""
    view = canvas.view
    allow = canvas.allow
    is_touched = allow[view.edges.src_unit] | allow[view.edges.dst_unit]
    edges = view.edges.at(canvas.is_float32[view.edges.src_unit] & is_touched)
    readers: dict[tuple[Node, Port, Unit], list[Unit]] = {}
    for node, port, source, reader in edges.rows("src_node", "src_port", "src_unit", "dst_unit"):
        readers.setdefault((node, port, source), []).append(reader)
    # A tensor of unknown size is as large as the median of the others.
    counts = [element_count(shape_of(shapes, view.names[node], port)) for node, port, _ in readers]
    known = [count for count in counts if count is not None]
    typical = statistics.median(known or [_DEFAULT_ELEMENTS])
    stored = _stored_in_f16(canvas)
    ports = []
    for (node, port, source), count in zip(readers, counts, strict=True):
        elements = typical if count is None else count
        runs = prices.runs.of_readers[node]
        if node in stored:
            runs = 0.0
        up, down = canvas.subject.resolution.costs.of_casts(elements)
        casts = (runs * up, runs * down)
        ports.append(_Port(source, readers[node, port, source], elements, casts))
    return ports


def _stored_in_f16(canvas: Canvas) -> set[Node]:
    """Returns the reads of variables that will be stored in 16 bit."""
    if not canvas.subject.resolution.stores_weights:
        return set()
    view = canvas.view
    in_float32 = view.edges.src_node[~canvas.allow[view.edges.dst_unit]]
    return set(view.nodes_with(VARIABLE_VALUES)).difference(in_float32.tolist())


def _find_sizes(canvas: Canvas, ports: Iterable[_Port]) -> dict[Unit, float]:
    """Returns the size of the largest tensor of each painted unit, in elements.

    A node that picks a part of a tensor does not read it as a whole.
    """
    is_part = canvas.view.units_with(PICKING)
    sizes: dict[Unit, float] = {}
    for port in ports:
        whole = [unit for unit in port.readers if not is_part[unit]]
        for unit in (port.source, *whole):
            if canvas.allow[unit]:
                sizes[unit] = max(sizes.get(unit, 0.0), port.elements)
    return sizes


def _memory_relief(canvas: Canvas, shapes: Shapes) -> dict[Unit, float]:
    """Returns the memory, in ns, that painted units save whose results are live near the peak."""
    view = canvas.view
    lifetimes = Lifetimes.of(view, shapes)
    live = lifetimes.bytes_over_time(view.dtypes)
    crowded = np.flatnonzero(live * _HALF >= live.max(initial=0.0))
    relief: dict[Unit, float] = {}
    for tensor, elements in lifetimes.elements.items():
        unit = lifetimes.units[tensor]
        first, last = lifetimes.span(tensor)
        begin = np.searchsorted(crowded, first)
        end = np.searchsorted(crowded, last, side="right")
        if canvas.allow[unit] and begin < end:
            relief[unit] = relief.get(unit, 0.0) + elements * _BYTES_SAVED * _NS_PER_BYTE
    return relief


def find_cheaper_in_float32(weighing: Weighing, allow: UnitMask) -> list[list[Unit]]:
    """Returns the painted units that are float32 in the cheapest choice, in sets.

    The choice is made for all units together.
    """
    network = Network()
    vertex_of: dict[Unit, int] = {}
    for tied in weighing.ties:  # units that must agree are one vertex
        vertex = network.add_vertex()
        for unit in tied:
            if allow[unit]:
                vertex_of[unit] = vertex
    for unit in weighing.sizes:
        if unit not in vertex_of:
            vertex_of[unit] = network.add_vertex()
    # The cut pays for each unit on its slower side.
    for unit, vertex in vertex_of.items():
        saved = weighing.saved(unit)
        capacity = UNBOUNDED
        if math.isfinite(saved):
            capacity = round(abs(saved) * _UNITS_PER_NS)
        if saved > 0:
            network.add_edge(SOURCE, vertex, capacity)
        else:
            network.add_edge(vertex, SINK, capacity)
    # It pays a cast where it parts a port from a reader.
    ports = [(port.source, *port.readers) for port in weighing.ports]
    for port, units in zip(weighing.ports, ports, strict=True):
        vertices = []
        for unit in units:
            fixed = SOURCE if allow[unit] else SINK
            vertices.append(vertex_of.get(unit, fixed))
        up, down = port.casts
        _add_cast(network, vertices, SINK, round(up * _UNITS_PER_NS))
        _add_cast(network, vertices, SOURCE, round(down * _UNITS_PER_NS))
    is_f16 = network.source_side()
    left = [unit for unit, vertex in vertex_of.items() if not is_f16[vertex]]
    return connected(left, ports)


def _add_cast(network: Network, vertices: Sequence[int], side: int, capacity: int) -> None:
    """Adds edges that charge one cast if any reader is on a side and the source is not.

    Args:
        vertices: the vertex of the source, and those of the readers.
        side: the side of the readers that read the cast: ``SOURCE`` for 16 bit, or ``SINK``.
        capacity: the time of the cast.
    """
    source, *readers = vertices
    shared = readers[0]
    if len(readers) > 1:
        shared = network.add_vertex()
    links = [(source, shared, capacity)]
    for reader in readers:
        links.append((shared, reader, UNBOUNDED))  # no edge if both are one
    for tail, head, limit in links:
        if side == SINK:
            network.add_edge(tail, head, limit)
        else:
            network.add_edge(head, tail, limit)


def find_islands(weighing: Weighing, allow: UnitMask) -> list[list[Unit]]:
    """Returns the connected sets of painted units without a product.

    Units are connected by 16-bit edges or by ties.
    """
    links: list[Sequence[Unit]] = list(weighing.ties)
    for port in weighing.ports:
        if allow[port.source]:
            links.append((port.source, *port.readers))
    is_lasting = weighing.canvas.on_allow
    islands = []
    for units in connected(indices(allow), links):
        if not is_lasting[units].any() and weighing.relief.keys().isdisjoint(units):
            islands.append(units)
    return islands
