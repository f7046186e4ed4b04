"""Forms: a graph with edits that are decided, but not written yet; and the job that all forms of a
graph belong to.

What a painting asks for is planned here as well: new types, successors of ops, and casts where
precisions meet.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from amp_tf.config import AmpConfig
from amp_tf.graph import datatypes
from amp_tf.graph.attributes import ROUNDED_ATTR
from amp_tf.graph.datatypes import Indices, Mask, Node, Unit
from amp_tf.graph.edits import NO_EDITS, Edits, NewNode, Reader, Reop, Rewire, Tensor, attribute
from amp_tf.graph.inference import BatchShapes
from amp_tf.graph.names import CAST_SUFFIX, FreshNames, missing_node
from amp_tf.graph.sizes import KnownShapes, Shapes
from amp_tf.graph.templates import Templates, find_loop_bodies
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import ALLOW, SUCCESSOR_OPS, SUCCESSORS
from amp_tf.oplists.targets import Resolution
from amp_tf.painting.canvas import Canvas
from amp_tf.painting.eligibility import NOTHING_FOLDED, Folded, Obstacles, find_obstacles
from amp_tf.painting.outcome import Painting
from amp_tf.painting.paint import NO_CHANGE, Change, paint
from amp_tf.painting.reasons import Rule
from amp_tf.precision import Precision

_ATTEMPTS = 3  # paintings, until what a pass changes is what becomes 16 bit

_CAST_NAMES = {
    Precision.FLOAT16.data_type: "CastToFp16",
    Precision.BFLOAT16.data_type: "CastToBf16",
    Precision.FLOAT32.data_type: "CastToFp32",
}

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Job:
    """What stays the same for all forms of a graph, or of a function.

    Attributes:
        preserve: names of nodes that stay as they are.
        has_preserved: whether all of these must be there.
        loop_bodies: the functions that are bodies of functional loops, and nothing else.
        narrow: of a function, the units that are 16 bit because all functions that share their
            TensorLists agree.
        is_compiled: whether XLA compiles the function.
        traced: TensorFlow's AtomicFunction of a function; its graph, and those of what it calls,
            know shapes.
        change: under which the graph is decided, to see what it would turn; the settings have it
            already.
        batches: tells shapes for the batch sizes that costs are weighed at; ``None`` where the
            graph's own are used.
        beyond_range: by function, ``""`` for the graph itself, the names of nodes that give stored
            values which the 16-bit type cannot hold.
    """

    config: AmpConfig
    resolution: Resolution
    templates: Templates
    preserve: frozenset[str] = frozenset()
    has_preserved: bool = False
    loop_bodies: frozenset[str] = frozenset()
    narrow: Sequence[Unit] = ()
    is_compiled: bool = False
    traced: Any = None
    change: Change = NO_CHANGE
    batches: BatchShapes | None = None
    beyond_range: Mapping[str, Container[str]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        config: AmpConfig,
        resolution: Resolution,
        library: Any = None,
        preserve: frozenset[str] = frozenset(),
        *,
        root: Any = None,
        **settings: Any,
    ) -> Job:
        """What is to be done with a graph or function that may call those of a library, with
        further attributes.

        A ``root`` is a function that is not in the library, and calls some of it.
        """
        bodies = find_loop_bodies(
            [*(library.function if library else ()), *([root] if root else ())]
        )
        templates = Templates(library, SUCCESSORS)
        return cls(config, resolution, templates, preserve, loop_bodies=bodies, **settings)

    @property
    def converts(self) -> bool:
        """Whether anything becomes 16 bit on this machine."""
        return self.resolution.target is not None

    @property
    def chooses(self) -> bool:
        """Whether amp_tf chooses the precision, by what ops cost on this CPU: naming one means
        TensorFlow's own.
        """
        return self.resolution.uses_cost_model

    @property
    def saves_memory(self) -> bool:
        """Whether memory counts, not speed."""
        return self.converts and self.config.goal == "memory"

    def form(self, view: GraphView, shapes: Shapes | None) -> Form:
        """The graph as it is given; where no shapes are, with those that its nodes carry.

        Raises:
            GraphError: a node that is to be preserved is not there; the message names the closest
                ones.
        """
        if self.has_preserved and (missing := self.preserve.difference(view.names)):
            raise missing_node(min(missing), view.names, "rewrite(preserve=…)")
        shapes = KnownShapes.of_nodes(view.protos) if shapes is None else shapes
        if not self.chooses:
            return Form(self, view, shapes)
        from amp_tf.cpu.list_shapes import ListShapes

        at_sizes: Mapping[int, Shapes] = {}
        if self.batches and not self.products.isdisjoint(view.ops):
            at_sizes = self.batches.of(view.function)
        at_batch = {size: ListShapes(view, found) for size, found in at_sizes.items()}
        return Form(self, view, ListShapes(view, shapes), at_batch=at_batch)

    @functools.cached_property
    def products(self) -> frozenset[str]:
        """The ops that become 16 bit by themselves; none where nothing is converted."""
        target = self.resolution.target
        return frozenset(target.lists.members(ALLOW)) if target else frozenset()


@dataclasses.dataclass(frozen=True)
class Form:
    """A graph with edits that are decided, but not written yet.

    Attributes:
        view: the graph once the edits are made.
        edits: all edits so far, but for types and casts.
        folded: the nodes that have another meaning since normalization was folded.
        at_batch: the shapes for each batch size that costs are weighed at; with none, ``shapes``
            count.
    """

    job: Job
    view: GraphView
    shapes: Shapes
    edits: Edits = NO_EDITS
    folded: Folded = NOTHING_FOLDED
    at_batch: Mapping[int, Shapes] = dataclasses.field(default_factory=dict)

    def then(
        self, edits: Edits, models: Mapping[str, Node] | None = None, folded: Folded | None = None
    ) -> Form:
        """The form with more edits; itself if there are none.

        Models are the nodes of this form whose results have the shapes of those of nodes that are
        new or have others.
        """
        if not edits:
            return self
        view = self.view.after(edits, self.job.templates)
        named = {name: self.view.names[model] for name, model in (models or {}).items()}

        def known(shapes: Shapes) -> Shapes:
            return KnownShapes(
                {name: shapes.output_shapes(model) for name, model in named.items()}, shapes
            )

        at_batch = {size: known(shapes) for size, shapes in self.at_batch.items()}
        after = self.edits.then(edits)
        return Form(self.job, view, known(self.shapes), after, folded or self.folded, at_batch)

    def under(self, change: Change) -> Form:
        """The same graph, to be decided under a change.

        Raises an OpListError where an op joins two lists.
        """
        config = change.config(self.job.config)
        resolution = self.job.resolution.under(config)
        job = dataclasses.replace(self.job, config=config, resolution=resolution, change=change)
        shapes = (
            KnownShapes.of(self.shapes, self.view.names).filled() if change.shapes else self.shapes
        )
        return dataclasses.replace(self, job=job, shapes=shapes)

    def settled(self, wanted: T, make: Callable[[T], Form], kept: Callable[[Form, T], T]) -> Form:
        """The form after a pass for just those candidates that become 16 bit by it, as its painting
        shows.

        The pass is made for all candidates, and then for those that were kept, until all are kept;
        after three paintings, for those that are left.
        """
        for _ in range(_ATTEMPTS):
            if not wanted:
                return self
            form = make(wanted)
            found = kept(form, wanted)
            if found == wanted:
                return form
            wanted = found
        return make(wanted) if wanted else self

    @functools.cached_property
    def obstacles(self) -> Obstacles:
        """The nodes that must stay as they are, or that the user has a wish for."""
        job = self.job
        found = find_obstacles(self.view, job.resolution, job.config, job.preserve, self.shapes)
        return job.change.obstacles(found, self.view.names)

    @functools.cached_property
    def painting(self) -> Painting:
        """What becomes 16 bit."""
        job = self.job
        cost_model: Callable[[Canvas], Canvas] | None = None
        if job.chooses:
            from amp_tf.cpu.economy import drop_unprofitable

            cost_model = functools.partial(drop_unprofitable, at_batch=self.at_batch)
        beyond = job.beyond_range.get(self.view.function, ())
        scales = dict.fromkeys(self.folded.scales, Rule.SCALES_FILTER)
        painting = paint(
            self.view,
            job.resolution,
            dataclasses.replace(self.obstacles, rule_of={**self.obstacles.rule_of, **scales}),
            job.change,
            is_function=job.templates.is_function,
            calls_products=functools.partial(job.templates.reaches, ops=job.products),
            is_loop_body=self.view.function in job.loop_bodies,
            shapes=self.shapes,
            cost_model=cost_model,
            beyond_range=[node for node, name in enumerate(self.view.names) if name in beyond]
            if beyond
            else [],
        )
        return painting.also(job.narrow, Rule.LIST_SHARED)


class Pass(NamedTuple):
    """Changes a graph before its types are decided, or gives the form itself where it need not.

    Attributes:
        changes_functions: whether it runs on the bodies of functions as well.
    """

    name: str
    is_needed: Callable[[Job], bool]
    run: Callable[[Form], Form]
    changes_functions: bool = False


def plan_edits(painting: Painting) -> Edits:
    """The edits that give the painted graph its mixed-precision form.

    An output port that some reader needs in the other precision gets one Cast, shared by all those
    readers and placed on the port's device. New nodes are casts alone. A product that is rounded
    keeps its types and gets a mark.
    """
    if painting.precision is None or not painting.converted:
        return NO_EDITS
    view = painting.view
    f16 = painting.precision.data_type
    is_rounded = painting.rounded_units()
    rewires: list[Rewire] = []
    casts: list[NewNode] = []
    for number, (cast, readers) in enumerate(
        plan_casts(view, painting.dtypes_after(), is_rounded), view.node_count
    ):
        casts.append(cast)
        rewires += [Rewire(*reader, number, 0) for reader in readers]
    reops: list[Reop] = []
    for node in painting.converted_nodes():
        signature = view.signatures[node]
        if (
            signature.op in SUCCESSOR_OPS and (proto := view.protos[node]).op != signature.op
        ):  # read as its successor
            added = next(
                slot.attr for slot in signature.slots if slot.attr and slot.attr not in proto.attr
            )
            reops.append(Reop(node, signature.op, {added: attribute(type=datatypes.FLOAT)}))
    rounded = dict.fromkeys(view.unit_nodes[unit] for unit in np.flatnonzero(is_rounded).tolist())
    reops += [Reop(node, view.ops[node], {ROUNDED_ATTR: attribute(type=f16)}) for node in rounded]
    converted = np.asarray(painting.converted, np.int32)
    return Edits(
        reops=tuple(reops),
        retypes=(view.retyped(converted[~is_rounded[converted]], f16),),
        rewires=tuple(rewires),
        new=tuple(casts),
    )


def cast_sources(casts: Edits, node_count: int) -> dict[int, Tensor]:
    """The tensor of the graph that each new cast gives in another type, by the cast's number."""
    found: dict[int, Tensor] = {}
    for number, cast in enumerate(casts.new, node_count):
        source = cast.inputs[0]
        found[number] = found.get(source[0], source)
    return found


def plan_casts(
    view: GraphView, after: Indices, is_rounded: Mask
) -> Iterator[tuple[NewNode, Sequence[Reader]]]:
    """The casts, each with all readers that need what it gives; of a chain of casts, each comes
    after its source.

    Args:
        after: the type of each unit as it was painted.
        is_rounded: the units that stay in float32 all the same: what comes in and goes out is
            rounded to that type.
    """
    edges = view.edges
    computed = np.where(is_rounded, datatypes.FLOAT, after)
    has_casts = (after[edges.src_unit] != after[edges.dst_unit]) | is_rounded[edges.src_unit]
    edges = edges.at(has_casts | is_rounded[edges.dst_unit])
    types = (
        computed[edges.src_unit],
        after[edges.src_unit],
        after[edges.dst_unit],
        computed[edges.dst_unit],
    )
    columns = edges.src_node, edges.src_port, *types
    keys = zip(*(column.tolist() for column in columns), strict=True)
    readers: dict[tuple[Tensor, tuple[int, ...]], list[Reader]] = {}
    for (node, port, *path), reader in zip(
        keys, edges.rows("dst_node", "dst_position"), strict=True
    ):
        steps = tuple(data_type for data_type, _ in itertools.groupby(path))
        for end in range(2, len(steps)):
            readers.setdefault(((node, port), steps[:end]), [])
        readers.setdefault(((node, port), steps), []).append(reader)
    names = FreshNames(view.names if readers else (), CAST_SUFFIX)
    made: dict[tuple[Tensor, tuple[int, ...]], int] = {}
    for tensor, steps in readers:
        made[tensor, steps] = view.node_count + len(made)
        source = (made[tensor, steps[:-1]], 0) if len(steps) > 2 else tensor
        name = names.make(f"{view.names[tensor[0]]}-{tensor[1]}-{_CAST_NAMES[steps[-1]]}")
        cast = NewNode.cast(name, source, view.devices[tensor[0]], of=steps[-2], to=steps[-1])
        yield cast, readers[tensor, steps]
