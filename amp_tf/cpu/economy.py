"""The cost model: the times of nodes on a CPU, and which of them are not faster there in 16 bit.

An op is faster in one of the types, and a cast is paid wherever the types of neighbours differ; the
cheapest choice for all of them at once is a minimum cut (:class:`amp_tf.graph.algorithms.Network`).
Nodes in a loop count as often as the loop is expected to iterate, so that a cast of a value that
does not change there stands before it. Nodes that TensorFlow computes in one kernel have one type:
a bias gradient and the filter gradient that reads the same tensor, a bias, a residual sum and an
activation and the product before them. A set of connected 16-bit nodes without a product stays in
float32: what is left to win there is not worth the rounding.

All this needs static shapes. A tensor of unknown shape is taken to be as large as the median of
those that are known, and a product of one is 16 bit.

Small batches gain less than large ones, because casts of weights cost the same. So where a graph is
to serve batches of several sizes, it is weighed at the largest and at the smallest in turns, each
time without what was taken off before, until neither takes off more. The rest is faster in 16
bit at both, and between them, where costs grow with the batch.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from amp_tf.graph.algorithms import SINK, SOURCE, UNBOUNDED, Network, connected
from amp_tf.graph.attributes import value_of
from amp_tf.graph.datatypes import Node, Unit
from amp_tf.graph.sizes import KnownShapes, Lifetimes, Shapes, element_count, shape_of
from amp_tf.graph.view import GraphView
from amp_tf.oplists.cost_tables import (
    BROADCAST,
    CHANNELS_FIRST,
    CHANNELS_FIRST_LAYOUTS,
    FREE_OP,
    POINTWISE_FIRST,
    SLOW,
    SLOW_IF_LARGE,
    SLOW_IF_STRIDED,
    TRANSPOSED,
    TRANSPOSING,
    VECTOR_TAPS,
    CostTable,
    Pair,
    padding_factor,
)
from amp_tf.oplists.fusions import SWISH
from amp_tf.oplists.kernels import PAIRED
from amp_tf.oplists.table import BROADCASTING, PICKING, VARIABLE_VALUES
from amp_tf.oplists.targets import XLA_WIDENS
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.decisions import Decision, Verdict
from amp_tf.painting.masks import UnitMask, indices
from amp_tf.painting.reasons import Balance, Rule
from amp_tf.painting.remapper import computed_with_products, find_swishes
from amp_tf.painting.ties import loop_units
from amp_tf.painting.work import count_runs, filter_shape, input_shapes, operations_of

_AS_IT_IS: Mapping[int, Shapes] = MappingProxyType({})
_UNITS_PER_NS = 1000  # capacities are whole numbers: picoseconds
_DEFAULT_ELEMENTS = 65_536
_UNMATCHED = "a pooling and its gradient are slow in two types, and one of them stays in float32"
#: ns that a byte at the peak is worth where memory is weighed: for a value of two bytes less, more
#: than any op loses.
_NS_PER_BYTE = 16.0
_BYTES_SAVED = 2  #: by an element in 16 bit
_SMALL = 8  #: times fewer elements: what reading them takes does not count
#: of the peak: where less is live in float32, the peak never comes to be once all is halved
_HALF = 2


class Prices:
    """The times of a graph's nodes on a CPU, as (in float32, in 16 bit), in ns.

    Attributes:
        runs: how many times each node is taken to run.
        swishes: the nodes that TensorFlow's remapper will compute as one, if both have one type.
    """

    def __init__(self, view: GraphView, shapes: Shapes, table: CostTable) -> None:
        self.runs = count_runs(view)
        self.swishes = find_swishes(view)
        self._table = table
        self._view = view
        self._shapes = shapes
        # The second of two nodes that are computed as one does the work of both.
        self._op_of: dict[Node, str] = {}
        for gate, product in self.swishes:
            self._op_of[gate] = FREE_OP
            self._op_of[product] = SWISH
        self.product = functools.cache(self._find_product)
        self._row = functools.cache(self._find_row)

    def op(self, node: Node, elements: float) -> Pair:
        """Returns the time of one run of a node, by the elements of its largest tensor; products
        have :meth:`product`.
        """
        op, variant = self._row(node)
        return self._table.of_op(op, elements, variant)

    def product_of(self, node: Node, operations: float, elements: float) -> Pair:
        """Returns the time of one run of a product, by the elements of what it reads and writes."""
        op = self._view.ops[node]
        variant = self.variant(node)
        kernel = filter_shape(self._view, node, self._shapes)
        computed = operations * padding_factor(op, kernel, variant)
        outputs = self._shapes.output_shapes(self._view.names[node])
        results = element_count(outputs[0]) if outputs else 0
        return self._table.of_product(op, computed, elements, variant, results or 0)

    def variant(self, node: Node) -> str:
        """Returns the variant of a product, by which the table of costs has its row."""
        op = self._view.ops[node]
        proto = self._view.protos[node]
        kernel = filter_shape(self._view, node, self._shapes)
        if op in SLOW_IF_STRIDED and any(stride > 1 for stride in proto.attr["strides"].list.i):
            return SLOW
        if op in SLOW_IF_LARGE and kernel is not None and math.prod(kernel[:2]) > VECTOR_TAPS:
            return SLOW
        if any(value_of(proto, name).b for name in TRANSPOSING):
            return TRANSPOSED
        if value_of(proto, "data_format").s not in CHANNELS_FIRST_LAYOUTS:
            return ""
        is_pointwise = kernel is not None and math.prod(kernel[:-2]) == 1
        return POINTWISE_FIRST if is_pointwise else CHANNELS_FIRST

    def _find_product(self, node: Node) -> Pair | None:
        """Returns the time of one run of a product, ``None`` if its shapes are unknown."""
        operations = operations_of(self._view, node, self._shapes)
        if operations is None:
            return None
        results = self._shapes.output_shapes(self._view.names[node])
        tensors = (*input_shapes(self._view, node, self._shapes), *results)
        elements = sum(element_count(shape) or 0 for shape in tensors)
        return self.product_of(node, operations, elements)

    def _find_row(self, node: Node) -> tuple[str, str]:
        """The op and the variant of the row of the table that tells what a node takes that is no
        product.
        """
        op = self._op_of.get(node, self._view.ops[node])
        outputs = self._shapes.output_shapes(self._view.names[node]) if op in BROADCASTING else ()
        if (result := element_count(outputs[0]) if outputs else None) is None:
            return op, ""
        counts = map(element_count, input_shapes(self._view, node, self._shapes))
        is_broadcast = any(count is not None and count * _SMALL <= result for count in counts)
        return op, BROADCAST if is_broadcast else ""


class _Port(NamedTuple):
    """An output port at which a cast to float32, or one to 16 bit, may be needed, with what all its
    runs take.
    """

    source: Unit
    readers: Sequence[Unit]
    elements: float
    casts: Pair


def drop_unprofitable(canvas: Canvas, at_batch: Mapping[int, Shapes] = _AS_IT_IS) -> Canvas:
    """Takes allow paint off units that are cheaper in float32, as
    :func:`amp_tf.painting.paint.weigh` says.

    Args:
        at_batch: the shapes for each batch size that is weighed; with none, the graph's own count.
    """
    ties: list[Sequence[Unit]] = [*canvas.clusters, *loop_units(canvas)]
    asked = canvas.subject.resolution.asked
    if asked is not None:
        return _leave_unasked(canvas, asked, ties)
    pairs = _kernel_pairs(canvas)
    for pair in pairs:
        canvas = _match_pair(canvas, pair)
    ties += pairs
    shapes = canvas.subject.shapes
    if shapes is None:
        shapes = KnownShapes.of_nodes(canvas.view.protos)
    at_batch = at_batch or {0: shapes}
    untried = len(at_batch)  # batch sizes at which the paint that is left may be slower than none
    for batch, sizes in itertools.cycle(at_batch.items()):
        before = canvas.allow
        canvas = _drop_at(canvas, ties, sizes, batch)
        is_same = bool((canvas.allow == before).all())
        untried = untried - 1 if is_same else len(at_batch) - 1
        if not untried:
            break
    return canvas


def _leave_unasked(canvas: Canvas, asked: frozenset[str], ties: Sequence[Sequence[Unit]]) -> Canvas:
    """Leaves all in float32 but forced nodes and ops that the user asks for, with their ties: no op
    is faster here.
    """
    painted = indices(canvas.allow)
    wanted = canvas.units_with(asked)
    kept = {unit for unit in painted if wanted[unit] or canvas.is_forced(unit)}
    kept.update(*[tie for tie in ties if not kept.isdisjoint(tie)])
    left = [unit for unit in painted if unit not in kept]
    return canvas.after(_not_faster(left, XLA_WIDENS))


def _not_faster(units: Sequence[Unit], weighed: Balance | str) -> Decision:
    return Decision(Verdict.LEAVE, units, Rule.DOES_NOT_PAY, weighed=weighed)


def _drop_at(canvas: Canvas, ties: Iterable[Sequence[Unit]], shapes: Shapes, batch: int) -> Canvas:
    """Takes allow paint off units that are cheaper in float32 with these shapes, which are those
    for a batch size, and off islands that are left.
    """
    weighing = Weighing(canvas, ties, shapes)
    for find in (find_cheaper_in_float32, find_islands):
        groups = find(weighing, canvas.allow)
        allow = canvas.allow.copy()
        allow[list(itertools.chain.from_iterable(groups))] = False
        balances = weighing.balances(groups, allow)
        weighed = (dataclasses.replace(balance, batch=batch) for balance in balances)
        canvas = canvas.after(*map(_not_faster, groups, weighed))
    return canvas


def _kernel_pairs(canvas: Canvas) -> list[list[Unit]]:
    """Returns the units of gradients of maxima and of their forward ops, whose 16-bit kernels are
    fast only together.
    """
    view = canvas.view
    edges = view.edges.at(view.mask_with(PAIRED)[view.edges.dst_node])
    pairs = []
    for source, node, position in edges.rows("src_node", "dst_node", "dst_position"):
        if PAIRED[view.ops[node]] == (view.ops[source], position):
            ends = (source, node)
            pairs.append([view.base[end] + view.signatures[end].outputs[0] for end in ends])
    return pairs


def _match_pair(canvas: Canvas, pair: Sequence[Unit]) -> Canvas:
    """Leaves a gradient of a maximum in float32 where its forward op is, and the other way round:
    mixed they take fifty times as long.
    """
    painted = [unit for unit in pair if canvas.allow[unit] and not canvas.is_forced(unit)]
    if len(painted) == 1 and not canvas.allow[pair].all():
        return canvas.after(_not_faster(painted, _UNMATCHED))
    return canvas


class Weighing:
    """The figures by which a painted graph is weighed.

    Attributes:
        canvas: the graph with the paint that the weighing begins with.
        ports: the float32 ports that touch paint.
        sizes: for each painted unit, the size of the largest tensor that it writes or reads as a
            whole.
        products: the painted products, each with its painted units. A product has one precision:
            the types of a fused one, T and TArgs, must change together or it aborts the process.
        ties: units that must agree, by each other.
        relief: what painted units save in memory, in ns: those whose results are live where at
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
        computed_with = self._find_followers(shapes)
        links = [*ties, *computed_with.items(), *self.products.values(), *self._find_swishes()]
        tied = connected(dict.fromkeys(itertools.chain.from_iterable(links)), links)
        self.ties = [sorted(units) for units in tied if any(unit in self.sizes for unit in units)]
        self.sizes.update(dict.fromkeys(computed_with, 0.0))
        self.relief = _memory_relief(canvas, shapes) if resolution.weighs_memory else {}

    def _find_followers(self, shapes: Shapes) -> dict[Unit, Unit]:
        """Returns the first units of converted nodes that are computed with a product, each with
        the product's.
        """
        view = self.canvas.view
        is_f16 = self.canvas.nodes_of(self.canvas.allow)
        pairs = computed_with_products(view, is_f16, shapes)
        return {view.base[node]: view.base[pairs[node]] for node in pairs if is_f16[node]}

    def _find_swishes(self) -> Iterator[list[Unit]]:
        view = self.canvas.view
        for first, second in self.prices.swishes:
            units = [*view.units(first), *view.units(second)]
            if self.canvas.allow[units].all():
                yield units

    def times(self, unit: Unit) -> Pair:
        """Returns what all runs of a unit's node take in float32 and in 16 bit, in ns; (inf, 0)
        where shapes are unknown.
        """
        node = self.canvas.view.unit_nodes[unit]
        runs = self.prices.runs.of_nodes[node]
        if not self.canvas.on_allow[unit]:
            in_float32, in_f16 = self.prices.op(node, self.sizes.get(unit, 0.0))
        else:
            in_float32, in_f16 = self.prices.product(node) or (math.inf, 0.0)
        return runs * in_float32, runs * in_f16

    def saved(self, unit: Unit) -> float:
        """Returns what a unit saves in 16 bit, in ns; of a product that is at its first unit.

        A forced unit saves most.
        """
        relief = self.relief.get(unit, 0.0)
        if self.canvas.is_forced(unit):
            relief = math.inf
        node = self.canvas.view.unit_nodes[unit]
        if self.products.get(node, [unit])[0] != unit:
            return relief
        in_float32, in_f16 = self.times(unit)
        return in_float32 - in_f16 + relief

    def balances(self, groups: Sequence[Sequence[Unit]], allow: UnitMask) -> list[Balance]:
        """Returns for each group what it takes in 16 bit and in float32.

        Groups that read one cast share it.

        Args:
            allow: the paint of the rest of the graph; groups are without paint.
        """
        group_of = {unit: number for number, group in enumerate(groups) for unit in group}
        in_float32 = [0.0] * len(groups)
        in_f16 = [0.0] * len(groups)
        node_of = self.canvas.view.unit_nodes
        for number, group in enumerate(groups):
            first_units = {node_of[unit]: unit for unit in reversed(group)}
            for unit in first_units.values():
                once = self.times(unit)
                in_float32[number] += once[0]
                in_f16[number] += once[1]
        for port in self.ports:
            home = group_of.get(port.source)
            up, down = port.casts
            if home is not None:
                readers = [unit for unit in port.readers if group_of.get(unit, -1) != home]
                outside = allow[readers]
                in_f16[home] += up * (not outside.all())
                in_float32[home] += down * bool(outside.any())
                continue
            served = {group_of[reader] for reader in port.readers if reader in group_of}
            for number in served:
                if allow[port.source]:
                    in_float32[number] += up / len(served)
                else:
                    in_f16[number] += down / len(served)
        return [Balance(*pair) for pair in zip(in_f16, in_float32, strict=True)]


def _find_ports(canvas: Canvas, shapes: Shapes, prices: Prices) -> list[_Port]:
    """Returns the float32 ports that touch paint."""
    view = canvas.view
    costs = canvas.subject.resolution.costs
    allow = canvas.allow
    is_touched = allow[view.edges.src_unit] | allow[view.edges.dst_unit]
    edges = view.edges.at(canvas.is_float32[view.edges.src_unit] & is_touched)
    readers: dict[tuple[Node, int, Unit], list[Unit]] = {}
    for node, port, source, reader in edges.rows("src_node", "src_port", "src_unit", "dst_unit"):
        readers.setdefault((node, port, source), []).append(reader)
    counts = [element_count(shape_of(shapes, view.names[node], port)) for node, port, _ in readers]
    sizes = [count for count in counts if count is not None]
    typical = statistics.median(sizes) if sizes else _DEFAULT_ELEMENTS
    stored = _stored_in_f16(canvas)
    ports = []
    for ((node, _, source), ends), count in zip(readers.items(), counts, strict=True):
        elements = typical if count is None else count
        runs = 0.0 if node in stored else prices.runs.of_readers[node]
        up, down = costs.of_casts(elements)
        ports.append(_Port(source, ends, elements, (runs * up, runs * down)))
    return ports


def _stored_in_f16(canvas: Canvas) -> set[Node]:
    """Returns the reads of variables that will be stored in 16 bit."""
    if not canvas.subject.resolution.stores_weights:
        return set()
    view = canvas.view
    in_float32 = view.edges.src_node[~canvas.allow[view.edges.dst_unit]]
    return set(view.nodes_with(VARIABLE_VALUES)).difference(in_float32.tolist())


def _find_sizes(canvas: Canvas, ports: Iterable[_Port]) -> dict[Unit, float]:
    """Returns the size of the largest tensor of each painted unit; what picks a part of one reads
    no tensor as a whole.
    """
    picking = canvas.view.mask_with(PICKING)
    node_of = canvas.view.unit_nodes
    sizes: dict[Unit, float] = {}
    for port in ports:
        whole = [unit for unit in port.readers if not picking[node_of[unit]]]
        for unit in (port.source, *whole):
            if canvas.allow[unit]:
                sizes[unit] = max(sizes.get(unit, 0.0), port.elements)
    return sizes


def _memory_relief(canvas: Canvas, shapes: Shapes) -> dict[Unit, float]:
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
    """Returns the sets of painted units that are cheaper in float32, all choices taken together."""
    network = Network()
    vertex_of: dict[Unit, int] = {}
    for tied in weighing.ties:  # units that must agree are one vertex
        vertex = network.add_vertex()
        vertex_of.update((unit, vertex) for unit in tied if allow[unit])
    for unit in weighing.sizes:
        if unit not in vertex_of:
            vertex_of[unit] = network.add_vertex()
    for unit, vertex in vertex_of.items():
        saved = weighing.saved(unit)
        capacity = UNBOUNDED if math.isinf(saved) else round(abs(saved) * _UNITS_PER_NS)
        if saved > 0:
            network.add_edge(SOURCE, vertex, capacity)
        else:
            network.add_edge(vertex, SINK, capacity)
    for port in weighing.ports:
        ends = (port.source, *port.readers)
        vertices = [vertex_of.get(unit, SOURCE if allow[unit] else SINK) for unit in ends]
        _add_port(network, vertices[0], vertices[1:], port.casts)
    is_f16 = network.source_side()
    left = [unit for unit, vertex in vertex_of.items() if not is_f16[vertex]]
    return connected(left, [(port.source, *port.readers) for port in weighing.ports])


def _add_port(network: Network, source: int, readers: list[int], casts: Pair) -> None:
    """Charges one cast if the source and any reader differ; all readers of one kind share it."""
    up, down = (round(ns * _UNITS_PER_NS) for ns in casts)
    # A reader of the other kind makes the source pay, whatever the other readers are.
    ends = [SINK] if SINK in readers else readers
    shared = ends[0] if len(ends) == 1 else network.add_vertex()
    network.add_edge(source, shared, up)
    for end in ends:
        network.add_edge(shared, end, UNBOUNDED)  # none where both are one
    ends = [SOURCE] if SOURCE in readers else readers
    shared = ends[0] if len(ends) == 1 else network.add_vertex()
    network.add_edge(shared, source, down)
    for end in ends:
        network.add_edge(end, shared, UNBOUNDED)


def find_islands(weighing: Weighing, allow: UnitMask) -> list[list[Unit]]:
    """Returns the sets of painted units without a product that are connected by 16-bit edges or by
    ties.
    """
    links = [(port.source, *port.readers) for port in weighing.ports if allow[port.source]]
    lasting = weighing.canvas.on_allow
    islands = []
    for units in connected(indices(allow), [*links, *weighing.ties]):
        if not any(lasting[unit] or unit in weighing.relief for unit in units):
            islands.append(units)
    return islands
