"""Forms: a graph with edits that are decided, but not written yet; and the job that all forms of a graph belong to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.graph.datatypes import Unit
from amp_tf.graph.edits import NO_EDITS, Edits
from amp_tf.graph.names import missing_node
from amp_tf.graph.sizes import AttributeShapes, ListShapes, NoShapes, Shape, Shapes
from amp_tf.graph.templates import Templates, find_loop_bodies
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import ALLOW, SUCCESSORS
from amp_tf.oplists.targets import Resolution
from amp_tf.painting.changes import NO_CHANGE, Change
from amp_tf.painting.eligibility import Obstacles, find_obstacles
from amp_tf.painting.folded import NOTHING_FOLDED, Folded
from amp_tf.painting.outcome import Painting
from amp_tf.painting.paint import paint
from amp_tf.painting.reasons import Rule


@dataclasses.dataclass(frozen=True)
class Form:
    """A graph with edits that are decided, but not written yet.

    Attributes:
        view: the graph once the edits are made.
        shapes: the static shapes of its tensors.
        edits: all edits so far, but for types and casts.
        folded: the nodes that have another meaning since normalization was folded.
    """

    view: GraphView
    shapes: Shapes
    edits: Edits = NO_EDITS
    folded: Folded = NOTHING_FOLDED

    def then(self, edits: Edits, templates: Templates, shapes: Mapping[str, Sequence[Shape | None]]) -> Form:
        """The form with more edits.

        Args:
            edits: those of this form's view.
            templates: the known ops.
            shapes: of the new nodes, and of those with another shape now, by name.
        """
        view = self.view.after(edits, templates)
        return dataclasses.replace(
            self, view=view, shapes=_ShapesAfter(self.shapes, shapes), edits=self.edits.then(edits)
        )


@dataclasses.dataclass(frozen=True)
class Job:
    """What stays the same for all forms of a graph, or of a function.

    Attributes:
        config: what to convert.
        resolution: what that means on this machine.
        templates: the known ops.
        preserve: names of nodes that stay as they are.
        has_preserved: whether all of these must be there.
        loop_bodies: the functions that are bodies of functional loops, and nothing else.
        narrow: of a function, the units that are 16 bit because all functions that share their TensorLists agree.
        traced: TensorFlow's AtomicFunction of a function; its graph, and those of what it calls, know shapes.
        change: what is taken away before, to see what it keeps in float32; the settings have it already.
    """

    config: AmpConfig
    resolution: Resolution
    templates: Templates
    preserve: frozenset[str] = frozenset()
    has_preserved: bool = False
    loop_bodies: frozenset[str] = frozenset()
    narrow: Sequence[Unit] = ()
    traced: Any = None
    change: Change = NO_CHANGE

    @classmethod
    def of(
        cls,
        config: AmpConfig,
        resolution: Resolution,
        library: Any = None,
        preserve: frozenset[str] = frozenset(),
        *,
        has_preserved: bool = False,
        root: Any = None,
        traced: Any = None,
    ) -> Job:
        """What is to be done with a graph or function.

        Args:
            config: what to convert.
            resolution: what that means on this machine.
            library: the functions that it may call.
            preserve: names of its nodes that stay as they are.
            has_preserved, traced: as the attributes.
            root: a function that is not in the library, and calls some of it.
        """
        bodies = find_loop_bodies([*(library.function if library else ()), *([root] if root else ())])
        return cls(config, resolution, Templates(library, SUCCESSORS), preserve, has_preserved, bodies, traced=traced)

    def under(self, change: Change) -> Job:
        """The same job once something is taken away."""
        resolution, config = change.lists(self.resolution, self.config), change.config(self.config)
        return dataclasses.replace(self, config=config, resolution=resolution, change=change)

    def form(self, view: GraphView, shapes: Shapes | None) -> Form:
        """The graph as it is given.

        Args:
            view: the graph.
            shapes: the static shapes of its tensors; ``None`` for those that its nodes carry.

        Raises:
            GraphError: a node that is to be preserved is not there; the message names the closest ones.
        """
        if self.has_preserved and (missing := self.preserve.difference(view.names)):
            raise missing_node(min(missing), view.names, "rewrite(preserve=…)")
        if shapes is None:
            are_asked_for = self.resolution.uses_cost_model or self.config.goal == "memory"
            shapes = AttributeShapes(view.protos) if are_asked_for else NoShapes()
        return Form(view, ListShapes(view, shapes) if self.resolution.uses_cost_model else shapes)

    def products(self) -> frozenset[str]:
        """The ops that become 16 bit by themselves, if amp_tf chooses the precision; else none."""
        target = self.resolution.target
        return frozenset(target.lists.members(ALLOW)) if target and self.resolution.uses_cost_model else frozenset()

    def obstacles(self, form: Form) -> Obstacles:
        """The nodes that must stay as they are, or that the user has a wish for."""
        found = find_obstacles(form.view, self.resolution, self.config, self.preserve, form.shapes)
        return self.change.obstacles(found, form.view.names)

    def paint(self, form: Form) -> Painting:
        """Decides what becomes 16 bit."""
        painting = paint(
            form.view,
            self.resolution,
            self.obstacles(form),
            is_function=self.templates.is_function,
            calls_products=self._calls_products,
            is_loop_body=form.view.function in self.loop_bodies,
            shapes=form.shapes,
            folded=form.folded,
            kernels=self.change.kernels,
            left_out=self.change.rules,
        )
        return painting.also(self.narrow, Rule.LIST_SHARED)

    def _calls_products(self, node: Any) -> bool:
        """Whether functions that a node calls compute products, as far as one can tell."""
        target = self.resolution.target
        return target is None or self.templates.callees.reaches(node, frozenset(target.lists.members(ALLOW)))


@dataclasses.dataclass(frozen=True)
class _ShapesAfter:
    """The shapes of an edited graph: those of the original, but for new nodes and those with another shape now."""

    before: Shapes
    changed: Mapping[str, Sequence[Shape | None]]

    def output_shapes(self, node: str) -> Sequence[Shape | None]:
        """The shapes of a node's output ports."""
        return self.changed[node] if node in self.changed else self.before.output_shapes(node)
