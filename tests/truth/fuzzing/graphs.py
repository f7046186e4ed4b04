"""Many programs in one graph, which is rewritten once and run once: a program alone costs twenty
times as much.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

import amp_tf
from tests.oracle import optimized
from tests.pretending import WHERE_PRODUCTS_PAY
from tests.rewriting.rewritten import GraphShapes
from tests.truth.fuzzing.programs import blocks_of
from tests.truth.fuzzing.steps import ROWS, WIDTH, Place, run_block

GraphDef = tf.compat.v1.GraphDef
DRAWS = 8  # of inputs and variables; results of all of them are judged together
_INITIALIZE = "initialize"


class ProgramGraph:
    """The graph of some programs.

    Args:
        programs: any number.
        seeds: one for each program, for its inputs and variables.
        is_lowered: whether loops and branches are nodes of the graph, as Grappler hands them over,
            or functions.
    """

    def __init__(self, programs, seeds, is_lowered):
        self.fetches = {}  # by the place of the program among the programs, and the tensor's name
        # Each has a name, a seed, and what draws it.
        self._inputs = []
        self._variables = []
        with tf.Graph().as_default() as graph:
            initializers = []
            for index, (program, seed) in enumerate(zip(programs, seeds, strict=True)):
                with tf.name_scope(f"p{index}"):
                    self._add(index, program, seed, initializers)
            with tf.control_dependencies(initializers):
                tf.no_op(_INITIALIZE)
        graph_def = graph.as_graph_def()
        feeds = [name for name, *_ in (*self._inputs, *self._variables)]
        self.preserve = [*self.fetches.values(), *feeds, _INITIALIZE]
        self.graph_def = (
            optimized(graph_def, ("function",), self.preserve) if is_lowered else graph_def
        )
        self._graph = _imported(self.graph_def) if is_lowered else graph
        self._shapes = GraphShapes(self._graph)

    def _add(self, index, program, seed, initializers):
        inputs = []
        variables = {}
        for given in program.inputs:
            inputs.append(tf.compat.v1.placeholder(tf.float32, (ROWS, WIDTH)))
            self._inputs.append((inputs[-1].op.name, (seed, len(inputs)), given.draw))
        for path, shape in _variables_of(program.steps, str(index)):
            start = tf.compat.v1.placeholder(tf.float32, shape)
            variables[path] = tf.Variable(start, name="w")
            initializers.append(variables[path].initializer)
            self._variables.append((start.op.name, (seed, 100 + len(variables)), _Weights(shape)))
        place = Place(str(index), variables, {})
        output = run_block(program.steps, inputs, place)
        notes = {
            "output": output,
            **{f"state {n}": note for n, note in enumerate(place.notes.values())},
        }
        if program.loss:
            notes["loss"] = LOSSES[program.loss](output)
            sources = [*inputs, *variables.values()]
            names = [
                *(f"input {n}" for n in range(len(inputs))),
                *(f"variable {n}" for n in range(len(variables))),
            ]
            for name, gradient in zip(names, tf.gradients(notes["loss"], sources), strict=True):
                if gradient is not None:
                    notes[f"gradient of {name}"] = tf.convert_to_tensor(gradient)
        for name, tensor in notes.items():
            self.fetches[index, name] = tf.identity(tensor, name="result").op.name

    def feeds(self, draw, noise=0.0, take=0):
        """Inputs and variables, changed by some units in the last place, up or down as the take has
        it.
        """
        other = np.random.default_rng((draw, take))

        def drawn(rows):
            for name, seed, draws in rows:
                values = draws(np.random.default_rng((*seed, draw)))
                yield (
                    f"{name}:0",
                    (values * (1 + noise * 2.0**-23 * other.choice((-1, 1), values.shape))).astype(
                        "f4"
                    ),
                )

        return dict(drawn(self._inputs)), dict(drawn(self._variables))

    def rewritten(self, config):
        result = amp_tf.rewrite(
            self.graph_def,
            config,
            hardware=WHERE_PRODUCTS_PAY,
            preserve=self.preserve,
            shapes=self._shapes,
        )
        return result.graph

    def run(self, graph_def, noise=0.0):
        """The results of all programs, the draws of each one behind the other."""
        values = self.values(graph_def, list(self.fetches.values()), noise)
        return dict(zip(self.fetches, values, strict=True))

    def values(self, graph_def, nodes, noise=0.0, take=0):
        """The first outputs of some nodes, the draws of each one behind the other."""
        draws = []
        graph = self._graph if graph_def is self.graph_def else _imported(graph_def)
        with _session(graph) as session:
            for draw in range(DRAWS):
                inputs, variables = self.feeds(draw, noise, take)
                session.run(_INITIALIZE, variables)
                draws.append(session.run([f"{name}:0" for name in nodes], inputs))
        return [np.stack(values) for values in zip(*draws, strict=True)]


LOSSES = {
    "mean square": lambda y: tf.reduce_mean(tf.square(y - 0.5)),
    "sum of squares": lambda y: 0.5 * tf.reduce_sum(tf.square(y)),
    "mean": tf.reduce_mean,
    "huber": lambda y: tf.reduce_mean(tf.compat.v1.losses.huber_loss(_targets(y), y)),
    "cross entropy": lambda y: tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=[n % WIDTH for n in range(ROWS)], logits=y
        )
    ),
    "binary cross entropy": lambda y: tf.reduce_mean(
        tf.nn.sigmoid_cross_entropy_with_logits(labels=_targets(y), logits=y)
    ),
}


@dataclasses.dataclass(frozen=True)
class _Weights:
    """Draws a variable; products with it are about as large as what it multiplies."""

    shape: tuple[int, ...]

    def __call__(self, dice):
        return dice.normal(size=self.shape) * max(np.prod(self.shape[:-1]), 4.0) ** -0.5


def _targets(y):
    return tf.constant(np.indices(y.shape).sum(0) % 2, tf.float32)


def _variables_of(block, path):
    """The paths under which steps find their variables, and the shapes."""
    for index, step in enumerate(block):
        of_step = f"{path}/{index}"
        for number, shape in enumerate(step.shapes()):
            yield f"{of_step}/{number}", shape
        for name, inner in blocks_of(step):
            yield from _variables_of(inner, of_step if name == "body" else f"{of_step}/{name}")


def _imported(graph_def):
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
    return graph


def _session(graph):
    """A session that runs the nodes just as they are, on one thread."""
    config = config_pb2.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = config_pb2.OptimizerOptions.L0
    return tf.compat.v1.Session(graph=graph, config=config)
