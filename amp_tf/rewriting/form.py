"""Forms: graphs with edits that are decided but not written; and the job that they share."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from amp_tf.config import AmpConfig
from amp_tf.graph.algorithms import gather
from amp_tf.graph.datatypes import Node, Unit, indices, mask_of
from amp_tf.graph.edits import NO_EDITS, Edits, NewNode, Tensor, having
from amp_tf.graph.inference import BatchShapes
from amp_tf.graph.names import FreshNames, missing_node
from amp_tf.graph.reader import read_function
from amp_tf.graph.sizes import KnownShapes, Shape, Shapes
from amp_tf.graph.templates import Templates, find_loop_bodies
from amp_tf.graph.view import GraphView
from amp_tf.oplists.table import ALLOW, SUCCESSORS
from amp_tf.oplists.targets import Resolution
from amp_tf.painting.canvas import Canvas, Subject
from amp_tf.painting.eligibility import NOTHING_FOLDED, Folded, Obstacles, find_obstacles
from amp_tf.painting.outcome import Painting
from amp_tf.painting.paint import NO_CHANGE, Change, paint_together
from amp_tf.painting.reasons import Rule

_ATTEMPTS = 3  # paintings of a pass, until all its candidates become 16 bit
_KEPT_PAINTINGS = 32  # of a program under changes, for reports

_Candidates = TypeVar("_Candidates")


@dataclasses.dataclass(frozen=True)
class Job:
    """Everything that is the same for all forms of a graph, or of a function.

    Attributes:
        preserve: names of nodes that stay as they are.
        is_callers: whether a caller gives the graph, and may run any part of it. A node to preserve
            that is missing is then an error; other graphs always run whole.
        loop_bodies: the functions that are bodies of functional loops, and nothing else.
        narrow: the units of a function that are 16 bit because all functions that share their
            TensorLists agree.
        is_compiled: whether XLA compiles the function.
        traced: TensorFlow's AtomicFunction of a function; its graph, and those of its callees, know
            shapes.
        change: the change whose effect is looked for; the settings have it already.
        batches: infers the shapes for each batch size that is weighed; ``None`` for the graph's own
            shapes.
        given: the shapes of the arguments of the call for which the graph is made, as far as they
            are known.
        beyond_range: by function, ``""`` for the graph itself, the names of nodes that give stored
            values which the 16-bit type cannot hold.
        program: the functions that are painted together with the given one; ``None`` for itself.
    """

    config: AmpConfig
    resolution: Resolution
    templates: Templates
    preserve: frozenset[str] = frozenset()
    is_callers: bool = False
    loop_bodies: frozenset[str] = frozenset()
    narrow: Sequence[Unit] = ()
    is_compiled: bool = False
    traced: Any = None
    change: Change = NO_CHANGE
    batches: BatchShapes | None = None
    given: Sequence[Shape | None] = ()
    beyond_range: Mapping[str, Container[str]] = dataclasses.field(default_factory=dict)
    program: Program | None = None

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
        """Makes the job of a graph or function.

        Args:
            library: the functions that it may call.
            root: a function that is not in the library and calls some of it.
            settings: further attributes.
        """
        functions = list(library.function) if library else []
        if root:
            functions.append(root)
        bodies = find_loop_bodies(functions)
        templates = Templates(library, SUCCESSORS)
        return cls(config, resolution, templates, preserve, loop_bodies=bodies, **settings)

    @property
    def converts(self) -> bool:
        """True if anything becomes 16 bit on this machine."""
        return self.resolution.target is not None

    @property
    def chooses(self) -> bool:
        """True if amp_tf chooses the precision, by the costs of ops on this CPU.

        If the user names a precision, TensorFlow's choice counts.
        """
        return self.resolution.uses_cost_model

    @property
    def lifts(self) -> bool:
        """True if TensorFlow's remapper fuses products; it does not run in XLA's programs."""
        return self.chooses and not self.is_compiled

    @property
    def folds(self) -> bool:
        """True if filters may be scaled; those that will be stored in 16 bit may not."""
        return self.lifts and not self.resolution.stores_weights

    @property
    def saves_memory(self) -> bool:
        """True if memory counts, not speed."""
        return self.converts and self.config.goal == "memory"

    def form(self, view: GraphView, shapes: Shapes | None) -> Form:
        """Returns the graph as it is given, by default with the shapes that its nodes carry.

        Raises:
            GraphError: a node that is to be preserved is not there; the message names the closest
                ones.
        """
        if self.is_callers:
            missing = self.preserve.difference(view.names)
            if missing:
                raise missing_node(min(missing), view.names, "rewrite(preserve=…)")
        if shapes is None:
            shapes = KnownShapes.of_nodes(view)
        if not self.chooses:
            return Form(self, view, shapes)
        from amp_tf.cpu.list_shapes import follow_lists
        from amp_tf.cpu.open_batches import at_open_batch

        known = follow_lists(view, shapes)
        at_batch: Mapping[int, Shapes] = {}
        if self.batches is None:
            at_batch = at_open_batch(view, known, self.products, self.given)
        elif not self.products.isdisjoint(view.ops):
            found = self.batches.of(view.function)
            at_batch = {size: follow_lists(view, of_size) for size, of_size in found.items()}
        return Form(self, view, known, at_batch=at_batch)

    @functools.cached_property
    def products(self) -> frozenset[str]:
        """The ops of the allow list; none where nothing is converted."""
        target = self.resolution.target
        if target is None:
            return frozenset()
        return frozenset(target.lists.members(ALLOW))


@dataclasses.dataclass(frozen=True)
class Form:
    """A graph with edits that are decided, but not written yet.

    Attributes:
        view: the graph once the edits are made.
        edits: all edits so far, except types and casts.
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
        """Returns the form with more edits; itself if there are none.

        Args:
            edits: the edits.
            models: the names of nodes with a new shape, each with a node of this form that has this
                shape.
            folded: the nodes with another meaning; by default those of this form.
        """
        if not edits:
            return self
        view = self.view.after(edits, self.job.templates)
        named = {name: self.view.names[model] for name, model in (models or {}).items()}

        def known(shapes: Shapes) -> Shapes:
            of_named = {name: shapes.output_shapes(model) for name, model in named.items()}
            return KnownShapes(of_named, shapes)

        at_batch = {size: known(shapes) for size, shapes in self.at_batch.items()}
        after = self.edits.then(edits)
        return Form(self.job, view, known(self.shapes), after, folded or self.folded, at_batch)

    def adding(self, new: NewNodes, **edits: Any) -> Form:
        """Returns the form with new nodes, and with more edits."""
        return self.then(Edits(new=tuple(new.nodes), **edits), new.models)

    def under(self, change: Change) -> Form:
        """Returns the same graph, to be decided under a change.

        Raises:
            OpListError: an op joins two lists.
        """
        config = change.config(self.job.config)
        resolution = self.job.resolution.under(config)
        job = dataclasses.replace(self.job, config=config, resolution=resolution, change=change)
        shapes = self.shapes
        if change.shapes:
            shapes = KnownShapes.of(shapes, self.view.names).filled()
        return dataclasses.replace(self, job=job, shapes=shapes)

    def settled(
        self,
        wanted: _Candidates,
        make: Callable[[_Candidates], Form],
        kept: Callable[[Form, _Candidates], _Candidates],
    ) -> Form:
        """Returns the form after a pass for just the candidates that it makes 16 bit.

        The pass runs for all candidates, then for those that the painting kept, until it keeps all.
        After three paintings it runs for those that are left.

        Args:
            wanted: the candidates.
            make: makes the pass for some candidates.
            kept: returns the candidates that become 16 bit in a painted form.
        """
        for _ in range(_ATTEMPTS):
            if not wanted:
                return self
            form = make(wanted)
            found = kept(form, wanted)
            if found == wanted:
                return form
            wanted = found
        if not wanted:
            return self
        return make(wanted)

    def may_wait(self, nodes: Iterable[Node], awaited: Node) -> bool:
        """Tells whether nodes may wait for another one: whoever runs one of them runs that, too.

        A graph with several signatures would otherwise ask one of them for the inputs of another.
        """
        if not self.job.is_callers:
            return True
        runs = self._runs
        return not any(runs[node] & ~runs[awaited] for node in nodes)

    @functools.cached_property
    def _runs(self) -> Sequence[int]:
        """For each node the runs of parts of the graph that need it, a bit for each.

        A part ends at a node that is preserved or that nothing reads.
        """
        view = self.view
        sources, readers = view.links
        is_end = ~mask_of(sources, view.node_count)
        is_end[[node for node, name in enumerate(view.names) if name in self.job.preserve]] = True
        ends = [0] * view.node_count
        for number, node in enumerate(indices(is_end)):
            ends[node] = 1 << number
        return gather(ends, readers, sources)

    @functools.cached_property
    def obstacles(self) -> Obstacles:
        """The nodes that must stay as they are, and those that the user forces."""
        job = self.job
        found = find_obstacles(self.view, job.resolution, job.config, job.preserve)
        return job.change.obstacles(found, self.view.names)

    @functools.cached_property
    def painting(self) -> Painting:
        """The decision for each node: which become 16 bit, and why."""
        job = self.job
        if job.program is None:
            [painting] = paint_together([self.subject], job.change)
        else:
            painting = job.program.paintings(job.change)[self.view.function]
        return painting.also(job.narrow, Rule.LIST_SHARED)

    @property
    def subject(self) -> Subject:
        """The graph to paint."""
        job = self.job
        cost_model: Callable[[Canvas], Canvas] | None = None
        if job.chooses:
            from amp_tf.cpu.economy import drop_unprofitable

            cost_model = functools.partial(drop_unprofitable, at_batch=self.at_batch)
        beyond = job.beyond_range.get(self.view.function, ())
        numbers = self.view.number_of if beyond else {}
        scales = dict.fromkeys(self.folded.scales, Rule.SCALES_FILTER)
        obstacles = self.obstacles
        return Subject(
            self.view,
            job.resolution,
            dataclasses.replace(obstacles, code_of={**obstacles.code_of, **scales}),
            job.change.kernels,
            templates=job.templates,
            is_loop_body=self.view.function in job.loop_bodies,
            shapes=self.shapes,
            cost_model=cost_model,
            beyond_range=[node for name, node in numbers.items() if name in beyond],
        )


class Program:
    """Functions that are painted together: one for XLA, and those that it calls.

    Attributes:
        forms: the functions by name, the first of which has callers outside of the program.
    """

    def __init__(self, functions: Iterable[Any], job: Job) -> None:
        self.forms: dict[str, Form] = {}
        for function in functions:
            form = job.form(read_function(function, job.templates), None)
            self.forms[form.view.function] = form
        #: Returns the painting of each function, under a change that holds for all.
        self.paintings = functools.lru_cache(_KEPT_PAINTINGS)(self._paint)

    def _paint(self, change: Change) -> Mapping[str, Painting]:
        forms = list(self.forms.values())
        if change:
            forms = [form.under(change) for form in forms]
        paintings = paint_together([form.subject for form in forms], change)
        return dict(zip(self.forms, paintings, strict=True))


class NewNodes:
    """Collects, numbers and names the nodes that a pass adds to a graph.

    Attributes:
        nodes: the new nodes, in the order of their numbers.
        models: by the name of a new node, a node of the graph whose result has the same shape.
    """

    def __init__(self, view: GraphView, suffix: str) -> None:
        self.nodes: list[NewNode] = []
        self.models: dict[str, Node] = {}
        self._view = view
        self._names = FreshNames(view.names, suffix)

    def add(
        self,
        stem: str,
        op: str,
        inputs: Iterable[Tensor],
        attributes: Mapping[str, Any],
        *,
        beside: Node,
        after: Iterable[Node] = (),
        model: Node | None = None,
    ) -> Node:
        """Adds a node, and returns its number.

        Args:
            stem: begins its name.
            op: its op.
            inputs: the tensors that it reads.
            attributes: its attributes.
            beside: a node on whose device it is.
            after: the nodes that it waits for.
            model: a node whose result has the same shape.
        """
        name = self._names.make(stem)
        device = self._view.devices[beside]
        having_them = having(**attributes)
        self.nodes.append(NewNode(name, op, device, tuple(inputs), tuple(after), having_them))
        if model is not None:
            self.models[name] = model
        return self._view.node_count + len(self.nodes) - 1

    def copy(
        self, node: Node, inputs: Iterable[Tensor], after: Iterable[Node], stem: str = ""
    ) -> Node:
        """Adds a node like another one, and returns its number; its name begins with the stem."""
        view = self._view
        attributes = view.protos[node].attr
        stem = stem or view.names[node]
        return self.add(
            stem, view.ops[node], inputs, attributes, beside=node, after=after, model=node
        )


class Pass(NamedTuple):
    """Changes a graph before its bytes are written.

    Attributes:
        name: the name by which tests leave it out.
        needed_if: the property of a :class:`Job` that is true if it needs the pass.
        run: returns the form after the pass; the same form if it has nothing to do.
        changes_functions: whether it runs on the bodies of functions as well.
    """

    name: str
    needed_if: str
    run: Callable[[Form], Form]
    changes_functions: bool = False
