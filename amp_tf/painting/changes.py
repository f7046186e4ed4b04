"""What is taken away before a graph is painted again, to see what it kept in float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from amp_tf.config import AmpConfig
from amp_tf.oplists.targets import Resolution
from amp_tf.painting.eligibility import Obstacles


@dataclasses.dataclass(frozen=True)
class Change:
    """One change, or several together.

    Attributes:
        op_lists: ops that join another list, op to list, as by ``…LIST_ADD``.
        patterns: patterns that leave ``keep_float32``.
        nodes: names of nodes that may be touched, whatever forbids it: their device, a scope, a fetch.
        kernels: ops that are taken to have 16-bit kernels for every type that can be another one.
        rules: rows of :data:`amp_tf.painting.paint.RULES` that are left out.
        shapes: unknown dimensions are taken to be known.
    """

    op_lists: tuple[tuple[str, str], ...] = ()
    patterns: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    kernels: frozenset[str] = frozenset()
    rules: frozenset[str] = frozenset()
    shapes: bool = False

    def __bool__(self) -> bool:
        return self != NO_CHANGE

    def plus(self, other: Change) -> Change:
        """Both changes together; where they move one op, the other's list counts."""
        return Change(
            op_lists=tuple({**dict(self.op_lists), **dict(other.op_lists)}.items()),
            patterns=self.patterns | other.patterns,
            nodes=self.nodes | other.nodes,
            kernels=self.kernels | other.kernels,
            rules=self.rules | other.rules,
            shapes=self.shapes or other.shapes,
        )

    def lists(self, resolution: Resolution, config: AmpConfig) -> Resolution:
        """What is converted once the ops are on their new lists."""
        if not self.op_lists or resolution.target is None:
            return resolution
        lists = resolution.target.lists.moved(dict(self.op_lists), config.level)
        return dataclasses.replace(resolution, target=dataclasses.replace(resolution.target, lists=lists))

    def config(self, config: AmpConfig) -> AmpConfig:
        """The settings without the patterns."""
        if not self.patterns:
            return config
        kept = tuple(pattern for pattern in config.keep_float32 if pattern not in self.patterns)
        return dataclasses.replace(config, keep_float32=kept)

    def obstacles(self, obstacles: Obstacles, names: Sequence[str]) -> Obstacles:
        """The obstacles without those of the nodes."""
        if not self.nodes:
            return obstacles
        left = {node: rule for node, rule in obstacles.rule_of.items() if names[node] not in self.nodes}
        return dataclasses.replace(obstacles, rule_of=left)


NO_CHANGE = Change()
