"""Scalars and a graph for TensorBoard, from the report of a process, in a run of their own beside the program's.

Events are written as records, without ops, so that it works at the end of any program: eager or not, on any thread.
"""

from __future__ import annotations

import collections
import itertools
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amp_tf.precision import Precision
from amp_tf.reporting.figures import converted_mask

if TYPE_CHECKING:
    from amp_tf.reporting.schema import RewriteReport

PREFIX = "amp_tf/"
_FILE = "events.out.tfevents."
_PLACES = (f"{_FILE}*", f"*/{_FILE}*", f"*/*/{_FILE}*")  # Keras writes to train/ and validation/ below its log_dir
_VERSION = "brain.Event:2"
_CALL = re.compile(r"^((Stateful)?PartitionedCall(_\d+)?/)+")


def holds_logs(folder: Path) -> bool:
    """Whether a folder, or a folder in it, holds TensorBoard's files."""
    return any(True for _ in itertools.chain.from_iterable(map(folder.glob, _PLACES)))


def write(document: Mapping[str, Any], folder: Path, report: RewriteReport | None = None) -> None:
    """Writes the scalars of a report: loss scale and skipped steps over steps, and how much was in 16 bit at the end.

    The graph with the most converted nodes is written too, for the colours of TensorBoard's Graphs page.

    Args:
        document: of a process.
        folder: for the event file; TensorBoard names the run after it.
        report: whose graph it is.

    Raises:
        OSError: it cannot be written.
    """
    import tensorflow as tf
    from tensorflow.core.framework.summary_pb2 import Summary
    from tensorflow.core.util.event_pb2 import Event

    folder.mkdir(parents=True)  # a new one, so that no link is in it
    now = time.time()
    try:
        with tf.io.TFRecordWriter(str(folder / f"{_FILE}{now:.0f}.amp_tf")) as file:
            file.write(Event(wall_time=now, file_version=_VERSION).SerializeToString())
            for step, tag, value in scalars(document):
                summary = Summary(value=[Summary.Value(tag=f"{PREFIX}{tag}", simple_value=value)])
                file.write(Event(wall_time=now, step=step, summary=summary).SerializeToString())
            if report is not None and (graph := coloured_graph(report)) is not None:
                file.write(Event(wall_time=now, graph_def=graph.SerializeToString()).SerializeToString())
    except tf.errors.OpError as error:
        raise OSError(error.message) from error


def coloured_graph(report: RewriteReport) -> Any:
    """The graph with the most converted nodes, for display only; ``None`` where nothing was converted.

    TensorBoard can colour nodes by device, but not by type. So each node's device is its precision here, and its
    attributes are left out.

    Returns:
        A ``tf.compat.v1.GraphDef``.
    """
    from tensorflow.core.framework.graph_pb2 import GraphDef

    graphs = [graph for graph in report.graphs if graph.converted]
    graph = max(graphs, key=lambda graph: graph.converted, default=None)
    if graph is None or graph.basis is None or graph.precision is None:
        return None
    view, is_f16 = graph.basis.view, converted_mask(graph.painting)
    names = _short(view.names)
    found = GraphDef()
    for node, proto in enumerate(view.protos):
        inputs = [] if proto is None else [_named(text, names) for text in proto.input]
        precision = graph.precision.value if is_f16[node] else Precision.FLOAT32.value
        found.node.add(name=names[view.names[node]], op=view.ops[node], input=inputs, device=precision)
    return found


def _short(names: Sequence[str]) -> dict[str, str]:
    """Names without the prefix of an inlined call, which would put the whole model in one box; all stay distinct."""
    short = [_CALL.sub("", name) for name in names]
    counts = collections.Counter([*short, *names])
    return {name: less if counts[less] == 1 else name for name, less in zip(names, short, strict=True)}


def _named(text: str, names: Mapping[str, str]) -> str:
    """An input under the name that its source has here; the port is left out."""
    control = "^" if text.startswith("^") else ""
    name = text.removeprefix("^").partition(":")[0]
    return f"{control}{names[name]}"


def scalars(document: Mapping[str, Any]) -> Iterator[tuple[int, str, float]]:
    """Step, name and value of each scalar; with several loss scales the names end in the model's."""
    curves = document["loss_scales"]
    for curve in curves:
        of_model = "" if len(curves) == 1 else f"/{curve['label']}"
        for step, scale, skipped in curve["points"]:
            yield step, f"loss_scale{of_model}", scale
            yield step, f"skipped_steps{of_model}", skipped
    end = max((curve["steps"] for curve in curves), default=0)
    totals, figures = document["totals"], document["figures"] or {}
    if totals.get("nodes"):
        yield end, "nodes_in_16_bit", totals["converted"] / totals["nodes"]
    if (share := figures.get("products_share_f16")) is not None:
        yield end, "products_in_16_bit", share
