"""What a parity case is: a graph, its fetches, and the nodes that become 16-bit in each mode, written down by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from tests.oracle import DT_FLOAT, Mode, type_attributes

GraphDef = tf.compat.v1.GraphDef
Types = Mapping[tuple[str, str], tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Expected:
    """What one mode makes of a case.

    Attributes:
        f16: the nodes, separated by blanks, whose float32 type attributes become 16-bit; ``node.attr`` names one
            attribute alone. Every other type stays as it was.
        added: how many nodes are added.
    """

    f16: str
    added: int

    def types(self, before: GraphDef, f16: int) -> dict[tuple[str, str], tuple[int, ...]]:
        """The DataType numbers of every (node, attribute) of the graph after the rewrite."""
        chosen = set(self.f16.split())
        missing = {name.partition(".")[0] for name in chosen} - {node.name for node in before.node}
        assert not missing, f"the case names nodes that its graph does not have: {missing}"
        return {
            (node.name, attr): tuple(
                f16 if t == DT_FLOAT and chosen & {node.name, f"{node.name}.{attr}"} else t for t in types
            )
            for node in before.node
            for attr, types in type_attributes(node)
        }


@dataclasses.dataclass(frozen=True)
class Case:
    """One graph with its expected result.

    Attributes:
        name: the name of the original test.
        build: makes the nodes in the default graph; may return a function that edits the GraphDef afterwards.
        fetch: the nodes that are preserved, and whose values must agree with float32.
        expected: by mode. A mode that is missing does not apply to the case.
        new_ops: the nodes whose op changes, with the new op.
        atol, rtol: how far a fetched value may be from float32's with float16; bfloat16, which has three bits fewer,
            may be eight times as far (see :meth:`tolerances`).
        feeds: values by tensor name.
        level: the rewrite level.
    """

    name: str
    build: Callable[[], Callable[[GraphDef], None] | None]
    fetch: tuple[str, ...]
    expected: Mapping[Mode, Expected]
    new_ops: Mapping[str, str] = dataclasses.field(default_factory=dict)
    atol: float = 1e-6
    rtol: float = 5e-4
    feeds: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    level: str = "DEFAULT"

    def tolerances(self, mode: Mode) -> tuple[float, float]:
        """Absolute and relative tolerance in that mode."""
        factor = 8 if mode is Mode.BFLOAT16 else 1
        return self.atol * factor, self.rtol * factor

    def graph_def(self) -> GraphDef:
        with tf.Graph().as_default() as graph:
            edit = self.build()
        graph_def = graph.as_graph_def()
        if edit:
            edit(graph_def)
        return graph_def


def everywhere(f16: str, added: int) -> dict[Mode, Expected]:
    """The same result in all three modes."""
    return dict.fromkeys(Mode, Expected(f16, added))


def can_run(mode: Mode) -> bool:
    """Whether this machine can run what the mode makes: a graph painted for a GPU needs one."""
    return mode is not Mode.CUDA or bool(tf.config.list_physical_devices("GPU"))


def run(
    graph_def: GraphDef, fetch: tuple[str, ...], feeds: Mapping[str, np.ndarray], init: str = ""
) -> list[np.ndarray]:
    """The values of the fetches, computed by the graph as it is: no Grappler pass touches it."""
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            if init:
                session.run(graph.get_operation_by_name(init))
            return session.run([f"{name}:0" for name in fetch], dict(feeds))
