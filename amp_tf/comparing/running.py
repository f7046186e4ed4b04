"""Runs versions of a step beside float32 over the batches, and measures outputs and single nodes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from amp_tf.comparing import instruments
from amp_tf.comparing.flattening import FlatStep
from amp_tf.comparing.instruments import Statistics
from amp_tf.comparing.joining import AMP, FLOAT32
from amp_tf.comparing.probes import Probe, probe
from amp_tf.comparing.progress import Progress
from amp_tf.comparing.step_graphs import JointGraph, RunnableStep
from amp_tf.comparing.steps import Step
from amp_tf.precision import Precision

_AT_ONCE = 150  # nodes per run: with all in one run, tensors waiting for their reductions would fill the memory


@dataclasses.dataclass(frozen=True)
class NodeMeasurement:
    """The measurements at one node.

    Attributes:
        probe: the node.
        accumulated: its result in the run against float32's.
        local: its result in 16 bit on exact inputs against float32's; ``None`` where it has none.
        largest_input: the largest size of a number of its inputs in float32.
    """

    probe: Probe
    accumulated: Statistics
    local: Statistics | None
    largest_input: float


@dataclasses.dataclass(frozen=True)
class OutputMeasurement:
    """How the outputs of a version differ from float32's.

    Attributes:
        rows: for each batch that ran its number, and a row for each output.
        is_cut: whether the user interrupted it, and batches are missing.
    """

    rows: Mapping[int, np.ndarray]
    is_cut: bool = False

    def pooled(self, numbers: Sequence[int] | None = None) -> list[Statistics]:
        """The statistics of each output, over some batches or all."""
        return pooled([self.rows[number] for number in (self.rows if numbers is None else numbers)])

    def furthest(self, count: int) -> list[int]:
        """The batches with the largest errors: most nonfinite numbers first, then by the sum of errors."""

        def off(number: int) -> tuple[float, float]:
            found = self.pooled([number])
            return sum(one.nonfinite for one in found), sum(min(one.error, 1e9) for one in found)

        return sorted(self.rows, key=lambda number: (*(-figure for figure in off(number)), number))[:count]


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Turns TF32 off in the block, so that GPUs compute products of float32 values in float32.

    TensorFlow lets GPUs from Ampere on round the operands of such products to TF32, which has float16's mantissa: such
    a reference would be as inaccurate as what is compared with it. The setting is the process'.
    """
    from tensorflow.config.experimental import enable_tensor_float_32_execution, tensor_float_32_execution_enabled

    before = tensor_float_32_execution_enabled()
    enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        enable_tensor_float_32_execution(before)


def pooled(batches: Sequence[np.ndarray]) -> list[Statistics]:
    """The statistics of each output, over the rows of some batches."""
    return [Statistics.of(rows) for rows in np.stack(batches, axis=1)]


def measure_outputs(
    truth: RunnableStep,
    version: RunnableStep,
    measure: Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], np.ndarray],
    numbers: Sequence[int],
    scale: float,
    *,
    is_over: Callable[[np.ndarray], bool] = lambda _: False,
    tell: Callable[[int, int], None] = lambda *_: None,
) -> OutputMeasurement:
    """Runs two versions alternately, and measures how their outputs differ.

    Args:
        truth: float32.
        version: the version to compare with it.
        measure: makes a row for each output, from the version's and float32's.
        numbers: of the batches.
        scale: of the loss, where the step is scaled.
        is_over: whether a batch's rows make the next ones needless.
        tell: called before each batch with its place and the number of batches.
    """
    rows: dict[int, np.ndarray] = {}
    try:
        for place, number in enumerate(numbers, 1):
            tell(place, len(numbers))
            right = truth.run(number, scale)
            rows[number] = measure(version.run(number, scale), right)
            del right  # before the next batch has its own
            if is_over(rows[number]):
                break
    except KeyboardInterrupt:
        if not rows:
            raise
        return OutputMeasurement(rows, is_cut=True)
    return OutputMeasurement(rows)


def measure_nodes(
    step: Step,
    flat: FlatStep,
    rewritten: Any,
    precision: Precision,
    number: int,
    scale: float,
    wanted: str | None,
    progress: Progress,
) -> list[NodeMeasurement]:
    """Measures each node in one batch; sources come before readers.

    Args:
        step, flat: the step.
        rewritten: the GraphDef as amp_tf rewrites it.
        precision: the 16-bit type.
        number: of the batch.
        scale: of the loss, where the step is scaled.
        wanted: a regular expression for further nodes to measure.
        progress: called with what is being done.
    """
    progress("looking at each node: building the graph")
    joint = JointGraph(step, flat, {FLOAT32: flat.graph, AMP: rewritten})
    found: list[Any] = []
    sizes: dict[str, float] = {}
    with joint.graph.as_default():
        probes = probe(flat, rewritten, joint.graph, wanted)
        quick = _rows(probes, instruments.Calls(joint.graph, instruments.quick_row, precision.smallest))
        inputs = _largest_inputs(probes)
    for start in range(0, len(probes), _AT_ONCE):
        progress(f"looking at {len(probes)} nodes, from number {start + 1} on")
        part = slice(start, start + _AT_ONCE)
        read = {tensor.name for each in probes[part] for tensor in each.inputs} & (inputs.keys() - sizes.keys())
        rows, more = joint.fetch((quick[part], {name: inputs[name] for name in read}), number, scale, is_alone=True)
        found += rows
        sizes.update(more)
        joint.close()  # a session keeps a graph for each set of nodes that was run
    odd = [place for place, rows in enumerate(found) if not all(map(instruments.is_enough, rows))]
    thorough: dict[int, Any] = {}
    if odd:
        progress(f"looking at {len(odd)} nodes again, whose numbers are infinite, or very large or small")
        calls = instruments.Calls(joint.graph, instruments.thorough_row, precision.smallest)
        again = joint.fetch(_rows([probes[place] for place in odd], calls), number, scale, is_alone=True)
        thorough = dict(zip(odd, again, strict=True))
    joint.close()
    found = [
        thorough[place] if place in thorough else [instruments.settled(row) for row in rows]
        for place, rows in enumerate(found)
    ]
    of_truth = {each.truth.name: float(rows[0][instruments.LARGEST]) for each, rows in zip(probes, found, strict=True)}
    known = {**{name: float(size) for name, size in sizes.items()}, **of_truth}
    return [_node_measurement(each, rows, known) for each, rows in zip(probes, found, strict=True)]


def _rows(probes: Sequence[Probe], calls: instruments.Calls) -> list[Any]:
    """For each node the row of its result in the run and, if it has one, that of its result on exact inputs."""
    return [calls.measure([each.value, *([] if each.local is None else [each.local])], each.truth) for each in probes]


def _largest_inputs(probes: Sequence[Probe]) -> dict[str, Any]:
    """The largest magnitude of each input whose own row does not contain it, by the tensor's name."""
    import tensorflow as tf

    known = {each.truth.name for each in probes}
    tensors = {tensor.name: tensor for each in probes for tensor in each.inputs if tensor.name not in known}
    largest = {}
    for name, tensor in tensors.items():
        value = tf.cast(tensor, tf.float32)
        largest[name] = tf.maximum(tf.reduce_max(value), -tf.reduce_min(value))
    return largest


def _node_measurement(each: Probe, rows: Sequence[np.ndarray], known: Mapping[str, float]) -> NodeMeasurement:
    local = None if each.local is None else Statistics.of(rows[1:2])
    largest_input = max((known[tensor.name] for tensor in each.inputs), default=0.0)
    without_graph = dataclasses.replace(each, truth=None, value=None, local=None, inputs=())  # trials need its memory
    return NodeMeasurement(without_graph, Statistics.of(rows[:1]), local, largest_input)
