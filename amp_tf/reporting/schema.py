"""What a report has of a graph, of its nodes, with a typed reason for every one, and of a model's stored weights."""

from __future__ import annotations

import collections
import dataclasses
import difflib
import enum
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from amp_tf.errors import ConfigError
from amp_tf.graph.datatypes import Unit
from amp_tf.graph.names import layer_of, matcher
from amp_tf.painting.outcome import Painting
from amp_tf.painting.paint import Change
from amp_tf.painting.reasons import Reason, Rule
from amp_tf.precision import Precision
from amp_tf.reporting.figures import NO_PRODUCTS, Basis, Figures, Products, converted_mask
from amp_tf.values import LAYER, check_pattern


@dataclasses.dataclass(frozen=True)
class NodeReport:
    """The precision of one node, and why.

    Attributes:
        name, op: the node.
        function: the function that holds it, empty for the graph itself.
        precision: what its result is computed in.
        reason: why.
    """

    name: str
    op: str
    function: str
    precision: Precision
    reason: Reason

    @property
    def layer(self) -> str:
        """The path of its layer in Keras where it was recorded, else the outermost scopes of its name."""
        return layer_of(self.name)


class Nodes(list[NodeReport]):
    """A list of nodes that can be filtered."""

    _whole: Nodes | None = None  # what it was filtered from, if it was

    def where(
        self,
        *,
        op: str | None = None,
        precision: Precision | str | None = None,
        reason: Rule | str | None = None,
        function: str | None = None,
        layer: str | None = None,
    ) -> Nodes:
        """The nodes that match all given arguments.

        Args:
            op: the op, such as ``"MatMul"``.
            precision: such as ``"bfloat16"``.
            reason: a :class:`~amp_tf.painting.reasons.Rule` or its name, or words that the reason holds.
            function: the function that holds the node, empty for graphs themselves.
            layer: the path of a layer, such as ``"encoder/block_3"``, for all nodes inside; each name of it may be a
                regular expression.

        Raises:
            ValueError: there is no such precision.
            ConfigError: there is no such reason, or no node of the whole list is in such a layer.
        """
        whole = self if self._whole is None else self._whole
        is_in_layer = None if layer is None else matcher(check_pattern(f"{LAYER}{layer}", where="Nodes.where(layer)"))
        wanted = Precision(precision) if precision is not None else None
        rule = Rule.__members__.get(reason) if isinstance(reason, str) else reason
        if isinstance(reason, str) and rule is None:
            said = (*(each.words for each in Rule), *(str(node.reason) for node in whole))
            if not any(reason in words for words in said):
                raise _unknown("reason", reason, [each.name for each in Rule])
        if is_in_layer is not None and whole and not any(is_in_layer(node.name) for node in whole):
            raise _unknown("layer", str(layer), sorted({node.layer for node in whole} - {""}))
        found = Nodes(
            node
            for node in self
            if (op is None or node.op == op)
            and (wanted is None or node.precision is wanted)
            and (reason is None or (node.reason.rule is rule if rule else str(reason) in str(node.reason)))
            and (function is None or node.function == function)
            and (is_in_layer is None or is_in_layer(node.name))
        )
        found._whole = whole
        return found


def _unknown(argument: str, asked: str, known: Sequence[str]) -> ConfigError:
    close = difflib.get_close_matches(asked, known, n=3, cutoff=0.5) or known[:3]
    what, fix = f"there is no {argument} {asked!r}", f"Write one that there is, such as {', '.join(map(repr, close))}"
    return ConfigError(what, where=f"Nodes.where({argument})", fix=fix)


@dataclasses.dataclass(frozen=True)
class GraphReport:
    """One graph or function body.

    Attributes:
        function: the function's name, empty for a graph.
        way: how it came: ``"offline"``, ``"grappler"`` or ``"xla"``.
        precision: the 16-bit type; ``None`` where nothing can be converted on this machine.
        total: nodes seen.
        converted: nodes converted.
        casts: casts inserted.
        why_nothing: where nothing was converted, why; else ``None``.
        unmatched: name rules that matched no node.
        of_scopes: the patterns of the scopes in this graph, each with whether it matched a node.
        is_revisit: the graph had been rewritten before (TensorFlow runs its optimizers twice).
        painting: what was decided, for :attr:`nodes`.
        folded: normalizations that were multiplied into the filter of the convolution before them.
        products: how much of the work of matrix products and convolutions is 16 bit.
        basis: what its figures are found from; ``None`` where no report was asked for before it was rewritten.
    """

    function: str
    way: str
    precision: Precision | None
    total: int
    converted: int
    casts: int
    why_nothing: Reason | None
    unmatched: tuple[str, ...]
    is_revisit: bool
    painting: Painting = dataclasses.field(repr=False, compare=False)
    folded: int = 0
    products: Products = dataclasses.field(default=NO_PRODUCTS, compare=False)  # it may have NaN
    basis: Basis | None = dataclasses.field(default=None, repr=False, compare=False)
    of_scopes: Mapping[str, bool] = dataclasses.field(default_factory=dict, hash=False)

    @property
    def nodes(self) -> Iterator[NodeReport]:
        """Every node, in the order of the graph."""
        converted = set(self.painting.converted_nodes())
        view = self.painting.view
        for node, (name, op) in enumerate(zip(view.names, view.ops, strict=True)):
            is_converted = node in converted and self.precision is not None
            precision = self.precision if is_converted and self.precision else Precision.FLOAT32
            yield NodeReport(name, op, self.function, precision, self.painting.reason(node))


class GraphFigures:
    """The report of one graph, and its figures where a basis was kept.

    Args:
        report: of the graph.
    """

    def __init__(self, report: GraphReport) -> None:
        self.report = report
        self.view = report.painting.view
        self.origins: dict[Unit, Unit] = {}  #: cache of where decisions came from

    @functools.cached_property
    def reasons(self) -> list[Reason]:
        """The reason of each node."""
        return [self.report.painting.reason(node) for node in range(self.view.node_count)]

    @functools.cached_property
    def is_f16(self) -> Any:
        """For each node, whether amp_tf has it compute in 16 bit."""
        return converted_mask(self.report.painting)

    @functools.cached_property
    def is_narrow(self) -> Any:
        """For each node, whether it computes in 16 bit, or the program itself has its result in 16 bit."""
        return self.is_f16 | self.figures.is_own

    @property
    def basis(self) -> Basis:
        """What the figures are computed from; only for graphs that have one."""
        assert self.report.basis is not None
        return self.report.basis

    @property
    def list_of(self) -> Mapping[str, str]:
        """The list of each op that is on a list."""
        target = self.basis.resolution.target
        return target.lists.list_of if target else {}

    @functools.cached_property
    def figures(self) -> Figures:
        """Operations, elements and runs of each node."""
        return Figures.of(self.basis.view, self.basis.shapes)

    def gain(self, change: Change) -> tuple[float, float, int]:
        """What becomes 16 bit under a change: operations of all nodes, those of products, and the number of nodes."""
        after = converted_mask(self.basis.paint(change))
        figures = Figures.of(self.basis.view, self.basis.shapes.filled()) if change.shapes else self.figures
        gained = figures.work * (after.astype(float) - self.is_f16)
        return float(gained.sum()), float(gained[figures.is_product].sum()), int(after.sum() - self.is_f16.sum())


_MEGABYTE = 1e6


class Kept(enum.Enum):
    """Why a variable stays float32; each completes "'name': …"."""

    UNREAD = "no converted node reads it"
    READ = "is read in float32 by {where}"
    WRITTEN = "is written by {where}"
    HANDED_ON = "is passed to {where}, whose use of it is not known"
    PARTITIONED = "is saved in parts"
    REFERENCE = "is a reference variable of TensorFlow 1, whose type all its readers share"
    RANGE = "holds values that 16 bit makes infinite"
    DISTRIBUTED = "has copies on several devices"


@dataclasses.dataclass(frozen=True)
class StoredVariable:
    """A float32 variable of a model, as the checkpoint has it.

    Attributes:
        name: its name; where nothing tells it, its key.
        key: of its values in the checkpoint.
        shape: its shape.
        precision: in which it is stored now.
        kept: why that is float32; ``None`` where it is not.
        where: the node that kept it, if one did.
    """

    name: str
    key: str
    shape: tuple[int, ...]
    precision: Precision
    kept: Kept | None = None
    where: str = ""

    @property
    def size(self) -> int:
        """Its bytes now."""
        return math.prod(self.shape) * (2 if self.precision.is_f16 else 4)

    @property
    def why(self) -> str:
        """Why it stays float32, in words."""
        return "" if self.kept is None else self.kept.value.format(where=repr(self.where))


@dataclasses.dataclass(frozen=True)
class Weights:
    """The float32 variables of a model once it was converted with 16-bit weights, the largest first."""

    variables: tuple[StoredVariable, ...]

    @property
    def stored(self) -> tuple[StoredVariable, ...]:
        """Those in 16 bit."""
        return tuple(variable for variable in self.variables if variable.precision.is_f16)

    def __str__(self) -> str:
        """Such as ``weights: 4 of 6 variables stored in bfloat16, 12.6 MB become 6.3``, and why the others are not."""
        before = sum(math.prod(variable.shape) * 4 for variable in self.variables) / _MEGABYTE
        after = sum(variable.size for variable in self.variables) / _MEGABYTE
        kind = f" in {self.stored[0].precision.value}" if self.stored else " in 16 bit"
        lines = [
            f"weights: {len(self.stored):,} of {len(self.variables):,} variables stored{kind}, "
            f"{before:,.1f} MB become {after:,.1f}"
        ]
        groups: dict[Kept, list[StoredVariable]] = collections.defaultdict(list)
        for variable in self.variables:
            if variable.kept is not None:
                groups[variable.kept].append(variable)
        for group in groups.values():
            size = sum(variable.size for variable in group) / _MEGABYTE
            count = "1 variable" if len(group) == 1 else f"{len(group):,} variables"
            lines.append(f"  {count} ({size:,.1f} MB) in float32, such as {group[0].name!r}: {group[0].why}")
        return "\n".join(lines)
