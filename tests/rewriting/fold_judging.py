"""One random graph before and after folding, without any conversion: the same results, and the shapes that are told."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

import amp_tf
from amp_tf.graph.editor import apply_to_graph
from amp_tf.graph.reader import read_graph
from amp_tf.graph.templates import Templates
from amp_tf.graph.verify import find_violation
from amp_tf.graph.wire import SerializedGraph, parse_graph
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.table import SUCCESSORS
from amp_tf.oplists.targets import resolve_target
from amp_tf.rewriting.folding import fold
from amp_tf.rewriting.form import Form, Job
from tests.graph_text import to_text
from tests.rewriting.random_normalization import NormalizedGraph, normalized_graph
from tests.rewriting.rewritten import GraphShapes

FOLDED, NOTHING = "folded", "nothing to fold"
# Of each value: all values are positive, and a sum of 16 products in another order differs by less than 16 × 2**-24,
# 1e-6. A step adds that to the errors of what it reads; a hundred steps may follow each other.
TOLERANCE = 1e-4
_CONFIG = amp_tf.AmpConfig()
_TARGET = resolve_target(_CONFIG, Hardware(cpu_has_bf16=True))
GraphDef = tf.compat.v1.GraphDef


@dataclasses.dataclass(frozen=True)
class FoldVerdict:
    """What came out: :data:`FOLDED` or :data:`NOTHING`, and what is wrong with it, if anything."""

    kind: str
    problem: str = ""


def judge_folding(graph: NormalizedGraph) -> FoldVerdict:
    """Folds the graph and runs it before and after."""
    expected = _run(graph.graph_def, graph)
    try:
        folded, result = _fold(graph)
        if folded is None:
            return FoldVerdict(NOTHING)
        found = _run(result, graph)
    except (amp_tf.AmpError, tf.errors.OpError, ValueError) as error:
        return FoldVerdict(FOLDED, f"{type(error).__name__}: {error}")
    problems = [*_deviations(graph.fetch, expected, found), *_contradictions(folded, graph, result)]
    return FoldVerdict(FOLDED, "; ".join(problems))


def judge_seed(seed: int) -> FoldVerdict:
    """The verdict on a seed's graph; a problem is told with the fewest steps that show it, as text."""
    verdict = judge_folding(normalized_graph(seed))
    if not verdict.problem:
        return verdict
    for steps in range(1, 15):
        graph = normalized_graph(seed, steps)
        problem = judge_folding(graph).problem
        if problem:
            break
    told = f"{problem}\nafter {steps} steps, preserve: {', '.join(sorted(graph.preserve))}\n{to_text(graph.graph_def)}"
    return FoldVerdict(verdict.kind, told)


def _fold(graph: NormalizedGraph) -> tuple[Form | None, GraphDef]:
    """What folding makes of a graph, as the pipeline's step and as a GraphDef that was written and verified."""
    data = SerializedGraph(graph.graph_def.SerializeToString())
    job = Job(_CONFIG, _TARGET, Templates(None, SUCCESSORS), graph.preserve)
    view = read_graph(data, job.templates)
    folded = fold(job.form(view, GraphShapes(graph.graph)))
    if not folded.edits:
        return None, graph.graph_def
    result = parse_graph(apply_to_graph(data.node, view.names, folded.edits, data.rest_data))
    violation = find_violation(view, read_graph(result, job.templates), folded.edits, folded.view)
    if violation:
        raise ValueError(violation)
    return folded, result


def _run(graph_def: GraphDef, graph: NormalizedGraph) -> list[np.ndarray]:
    """The fetched values, of the nodes just as they are: TensorFlow's own optimizers are off."""
    config = config_pb2.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(graph_def, name="")
        with tf.compat.v1.Session(graph=imported, config=config) as session:
            return session.run([f"{name}:0" for name in graph.fetch], graph.feeds)


def _deviations(fetch: Sequence[str], expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> Iterator[str]:
    for name, exact, value in zip(fetch, expected, found, strict=True):
        if exact.shape != value.shape:
            yield f"{name} has shape {value.shape} instead of {exact.shape}"
        elif not np.allclose(value, exact, rtol=TOLERANCE, atol=0.0):
            yield f"{name} is off by a factor of up to {np.max(np.abs(value / exact - 1.0)):.3g}"


def _contradictions(folded: Form, graph: NormalizedGraph, result: GraphDef) -> Iterator[str]:
    """Shapes that folding tells to the passes behind it, and that TensorFlow infers otherwise."""
    inferred = GraphShapes(result)
    for node in graph.graph_def.node:
        told, right = folded.shapes.output_shapes(node.name), inferred.output_shapes(node.name)
        if not all(map(_agree, told, right)):
            yield f"{node.name} is said to have shapes {told} and has {right}"


def _agree(told: tuple[int, ...] | None, right: tuple[int, ...] | None) -> bool:
    """Whether no size that both know differs; imported loops hide the shapes of what is in them."""
    if told is None or right is None:
        return True
    return len(told) == len(right) and all(-1 in (a, b) or a == b for a, b in zip(told, right, strict=True))
