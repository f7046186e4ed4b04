"""The figures of a rewritten graph, found from the graph itself: one yardstick for every version of
amp_tf.

The graph is read with all types float32, beside a mask of the nodes that are 16 bit in it.
Operations, runs and times are those of amp_tf's reports (:mod:`amp_tf.reporting.figures`).
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.decisions.traces import Trace

_FLOAT = 1
_F16 = frozenset({14, 19})  # bfloat16 and half, by their numbers


@dataclasses.dataclass(frozen=True)
class Figures:
    """The decisions for one graph.

    Attributes:
        products: the share of the products' work that is 16 bit, in per cent.
        elements: the share of the elements of floating-point results, casts apart, that are 16 bit,
            in per cent.
        casts: nodes that cast between float32 and 16 bit.
        gain: how many times faster the cost model expects the graph to run; ``None`` where it knows
            no costs.
    """

    products: float
    elements: float
    casts: int
    gain: float | None

    def differs(self, other: Figures) -> bool:
        """Returns True if a figure differs by more than 1 %."""
        if abs(self.products - other.products) > 1.0 or abs(self.elements - other.elements) > 1.0:
            return True
        pairs = ((self.casts, other.casts), (self.gain or 1.0, other.gain or 1.0))
        return any(abs(ours - theirs) > 0.01 * max(abs(theirs), 1e-9) for ours, theirs in pairs)


def figures_of(trace: Trace, graph: bytes, table: Path | None) -> Figures:
    """The figures of what a trace became.

    Args:
        trace: the graph before.
        graph: the graph now, serialized.
        table: the file of the costs; ``None`` for a GPU.
    """
    before = _read(trace, trace.graph)
    now = _read(trace, graph)
    gain = None
    if table:
        gain = round(before.time(table) / now.time(table), 3)
    casts = now.casts - before.casts
    return Figures(round(now.products, 1), round(now.elements, 1), casts, gain)


@dataclasses.dataclass(frozen=True)
class _Graph:
    """One graph as it is read, and its figures that need no costs."""

    view: Any
    shapes: Any
    figures: Any
    kinds: list[bool | None]  #: of casts, as :func:`_cast` tells them
    is_f16: Any
    products: float
    elements: float

    @property
    def casts(self) -> int:
        return len(self.kinds) - self.kinds.count(None)

    def time(self, table: Path) -> float:
        """The time in ns, casts included."""
        from amp_tf.config import AmpConfig
        from amp_tf.graph.sizes import element_count
        from amp_tf.oplists.cost_tables import read_table
        from amp_tf.oplists.targets import Resolution
        from amp_tf.reporting.figures import Basis, times_before_and_now

        costs = read_table(table)
        resolution = Resolution(None, "CPU", costs=costs)
        no_paint: Any = None
        basis = Basis(self.view, self.shapes, AmpConfig(), resolution, (), 0, paint=no_paint)
        _, times = times_before_and_now(basis, self.figures, self.is_f16)
        for node, kind in enumerate(self.kinds):
            if kind is None:
                continue
            elements = 0
            results = self.shapes.output_shapes(self.view.names[node])
            if results:
                elements = element_count(results[0]) or 0
            times[node] = costs.of_casts(elements)[kind] * self.figures.runs[node]
        return float(times.sum())


# A graph has figures for several tables of costs, and many become the same graph.
@functools.lru_cache(maxsize=8)
def _read(trace: Trace, data: bytes) -> _Graph:
    from amp_tf.cpu.list_shapes import follow_lists
    from amp_tf.graph.protos import parse_graph
    from amp_tf.graph.reader import read_graph
    from amp_tf.graph.sizes import KnownShapes, element_count
    from amp_tf.graph.templates import Templates
    from amp_tf.oplists.table import SUCCESSORS
    from amp_tf.reporting.figures import Figures as NodeFigures

    graph = parse_graph(data)
    known = KnownShapes(trace.shapes if data == trace.graph else _shapes(graph, trace))
    kinds = []
    widened = []
    for node in graph.node:
        kinds.append(_cast(node))
        widened.append(_widen(node))
    is_f16 = np.array(widened, np.bool_)
    view = read_graph(graph, Templates(graph.library, SUCCESSORS))
    shapes = follow_lists(view, known)
    figures = NodeFigures.of(view, shapes)
    # The elements that nodes write in a floating-point type, casts apart.
    written = np.zeros(view.node_count)
    for node, name in enumerate(view.names):
        if kinds[node] is not None:
            continue
        results = shapes.output_shapes(name)
        slots = view.signatures[node].outputs
        for shape, slot in zip(results, slots, strict=False):
            if view.dtypes[view.base[node] + slot] == _FLOAT:
                written[node] += element_count(shape) or 0
    products = _share(figures.work[figures.is_product], is_f16[figures.is_product])
    elements = _share(written * figures.runs, is_f16)
    return _Graph(view, shapes, figures, kinds, is_f16, products, elements)


def _share(values: Any, mask: Any) -> float:
    return 100.0 * float(values[mask].sum()) / max(float(values.sum()), 1e-9)


def _cast(node: Any) -> bool | None:
    """True for a cast of float32 to 16 bit, False for a cast back, ``None`` for other nodes."""
    if node.op != "Cast":
        return None
    source = node.attr["SrcT"].type
    result = node.attr["DstT"].type
    if source == _FLOAT and result in _F16:
        return True
    if source in _F16 and result == _FLOAT:
        return False
    return None


def _widen(node: Any) -> bool:
    """Makes all 16-bit types of a node float32; whether it had any."""
    had = False
    for value in node.attr.values():
        if value.type in _F16:
            value.type = _FLOAT
            had = True
        for place, number in enumerate(value.list.type):
            if number in _F16:
                value.list.type[place] = _FLOAT
                had = True
    return had


def _shapes(graph: Any, trace: Trace) -> dict[str, list[Any]]:
    """The shapes of a rewritten graph, as TensorFlow infers them: nodes that were moved have others
    than before.
    """
    from tensorflow.core.protobuf import meta_graph_pb2
    from tensorflow.python.grappler import item

    from amp_tf.graph.sizes import read_shape

    meta_graph = meta_graph_pb2.MetaGraphDef(graph_def=graph)
    meta_graph.collection_def["train_op"].node_list.value.extend(trace.preserve)
    found = item.Item(meta_graph).GetOpProperties()
    return {name: [read_shape(port.shape) for port in ports] for name, ports in found.items()}
