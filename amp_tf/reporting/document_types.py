"""The types of the document's parts, of which ``scripts/update_docs`` makes ``report-1.schema.json``.

In an annotation, a text describes the field, a tuple lists its valid values, and a dataclass has the fields of a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict

#: What keeps work in float32: the kinds of :mod:`amp_tf.reporting.blockers`.
KINDS = (
    *("deny list", "no list", "no kernel", "name rule", "lock file", "scope", "device", "fed or fetched"),
    *("not faster", "unknown shape", "accuracy", "structure"),
)
KIND = "amp_tf.report"
SCHEMA_VERSION = 1
F16 = Annotated[str, ("float16", "bfloat16")]
AnyPrecision = Annotated[str, ("float32", "float16", "bfloat16")]


@dataclasses.dataclass(frozen=True)
class Curve:
    """A loss scale over time.

    Attributes:
        label: of the model or optimizer.
        scale, steps, skipped: at the end.
        points: (step, scale, skipped steps so far), in order.
    """

    label: str
    scale: float
    steps: int
    skipped: int
    points: Sequence[tuple[int, float, int]] = ()


@dataclasses.dataclass(frozen=True)
class ProcessFacts:
    """What a report says of the process it was made in.

    Attributes:
        process: program, process number, host, seconds since amp_tf began, versions.
        totals: graphs by the way they came, nodes, nodes converted, casts: those included whose graphs are not kept.
        settings: each setting in force: field, value, and where it came from.
        devices: the type of each device, and what else is known of it.
        hooks: those that failed, rewrites that failed, and why amp_tf is off.
        loss_scales: one curve for each scaler.
        steps: what steps of each kind took, as the program ran them.
    """

    process: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    totals: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    settings: Sequence[Mapping[str, Any]] = ()
    devices: Sequence[Mapping[str, Any]] = ()
    hooks: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    loss_scales: Sequence[Curve] = ()
    steps: Sequence[Mapping[str, Any]] = ()


class Process(TypedDict, total=False):
    """The process that a report is of."""

    program: str
    pid: int
    host: str
    made: str
    seconds: float
    ended: Annotated[str, "how it ended, where not by itself"]
    amp_tf: str
    python: str
    tensorflow: str | None
    keras: str | None


class Totals(TypedDict, total=False):
    """Counts of a process."""

    graphs: dict[str, int]
    nodes: int
    converted: int
    casts: int


class Setting(TypedDict("From", {"from": Annotated[str, "default, a variable, amp_tf.enable, or amp_tf.register_op"]})):
    """A setting in force."""

    field: str
    value: Any


class Device(TypedDict):
    """A device; what else is known of it depends on its type."""

    type: str


class Hooks(TypedDict, total=False):
    """What the hooks of a process met."""

    off: str | None
    idle: str
    policy: str
    failures: int
    first_failure: str
    not_installed: dict[str, str]


class Steps(TypedDict):
    """What steps of one kind took."""

    way: Annotated[str, ("Keras", "tf.function", "session")]
    what: Annotated[str, "fit, evaluate or predict; the function; what was fetched"]
    steps: int
    seconds: Annotated[float, "of all steps together"]
    first_ms: float
    median_ms: Annotated[float, "of the last 1,000 steps but the first"]
    fastest_ms: float


class Counts(TypedDict):
    """Numbers by precision."""

    f16: float
    float32: float


class Times(TypedDict):
    """What one run takes by the cost model."""

    float32: float
    now: Annotated[float, "casts included"]
    casts: float


class Peak(TypedDict):
    """Bytes of tensors that are live at once in one run of the largest graph, without weights and work space."""

    float32: float
    now: Annotated[float, "casts included"]


class _FiguresAlways(TypedDict):
    graphs: int
    products_share_f16: float | None
    products: Counts
    operations: Counts
    products_unknown: int
    estimated_ms: Times | None


class Figures(_FiguresAlways, total=False):
    """The main figures."""

    estimated_peak: Annotated[Peak | None, "null where no graph's is known; absent in older reports"]
    products_own: Annotated[float, "operations in 16 bit by the program itself, not by amp_tf; absent in older reports"]


class OpRow(TypedDict):
    """An op."""

    op: str
    nodes: Counts
    operations: Counts


class BlockerRow(TypedDict):
    """What keeps work in float32."""

    kind: Annotated[str, KINDS]
    what: Annotated[str, "the op, pattern, layer, device or rule"]
    nodes: Annotated[int, "computing nodes that stay in float32 because of it"]
    operations: Annotated[float, "of these nodes"]
    example: str
    gain: Annotated[
        float | None,
        "operations that become 16 bit if it alone is taken away, found by deciding again; null where that was not "
        "tried",
    ]
    gain_products: float | None
    gain_nodes: int | None
    remedy: Annotated[str, "the variable or line that takes it away"]


class Root(TypedDict):
    """The name of a blocker."""

    kind: str
    what: str


class Together(TypedDict):
    """What some blockers are worth together."""

    roots: list[Root]
    gain: float


class NodeRow(TypedDict):
    """A node."""

    name: str
    op: str
    precision: Annotated[AnyPrecision, "what its result is computed in"]
    rule: Annotated[str, "the rule that decided, a name of amp_tf.Rule"]
    reason: Annotated[str, "the same in words"]


class FullNodeRow(NodeRow, total=False):
    """A node with what is known of it."""

    cause: Annotated[str, "the node that brought it about; absent where the rule needs none"]
    layer: Annotated[str, "the path of its layer in Keras; absent where none was recorded"]
    device: Annotated[str, "absent where the node carries none"]
    shapes: Annotated[
        list[list[int] | None], "static shapes of its outputs, -1 for an unknown dimension, null for an unknown rank"
    ]
    operations: Annotated[float | None, "floating-point operations of one run, null where unknown; absent for zero"]
    bytes: Annotated[float | None, "of the float tensors that one run reads and writes, as for operations"]
    runs: Annotated[
        float,
        "how often it runs while the graph runs once, a loop whose number of iterations is unknown counted as ten; "
        "absent for once",
    ]


class CastRow(TypedDict("From", {"from": AnyPrecision})):
    """An inserted cast."""

    to: AnyPrecision
    node: Annotated[str, "whose output is cast"]
    port: int
    layer: str
    readers: int
    runs: float
    bytes: Annotated[float | None, "read and written by one run"]
    estimated_ms: Annotated[float | None, "of all runs"]


class LayerRow(TypedDict):
    """A layer."""

    layer: Annotated[str, "the name scopes around its nodes"]
    keras: Annotated[str, "its path in Keras; empty where none was recorded"]
    structure: Annotated[str, "its forward ops and how often each"]
    weights: Annotated[list[str], "shapes of its products' weights, where they are known"]
    place: Annotated[str, "among the layers that are alike, such as 2/6"]


class _GraphAlways(TypedDict):
    function: Annotated[str, "empty for a graph"]
    way: Annotated[str, ("offline", "grappler", "xla")]
    precision: F16 | None
    converted: int
    total: int
    casts: int
    folded: Annotated[int, "normalizations multiplied into filters"]
    hoisted: Annotated[int | None, "reads moved out of loops"]
    why_nothing: str | None
    nodes: list[FullNodeRow]
    inserted_casts: list[CastRow]


class GraphRow(_GraphAlways, total=False):
    """A graph or a function."""

    layers: Annotated[
        list[LayerRow], "with a lock file, the layers that compute, and how they are made; absent in older reports"
    ]


class _Always(TypedDict):
    schema: Annotated[str, (KIND,)]
    schema_version: Annotated[int, (SCHEMA_VERSION,)]
    converted: Annotated[int, "nodes, in the graphs below"]
    total: int
    casts: int
    precisions: list[F16]
    why_nothing: str | None
    summary: Annotated[str, "of a process, its line at exit"]
    process: Process
    totals: Annotated[Totals, "of a process, graphs included that are no longer kept"]
    settings: list[Setting]
    devices: list[Device]
    hooks: Hooks
    loss_scales: Annotated[list[dict[str, Any]], Curve]
    figures: Figures | None
    ops: list[OpRow]
    blockers: Annotated[list[BlockerRow], "those with most to gain first"]
    together: Together | None
    graphs: list[GraphRow]


class WeightRow(TypedDict):
    """A float32 variable of a SavedModel, once it was converted with 16-bit weights."""

    name: str
    key: Annotated[str, "of its values in the checkpoint"]
    shape: list[int]
    precision: Annotated[str, ("float32", "float16", "bfloat16")]
    why: Annotated[str, "why it stays float32; empty where it does not"]


class Document(_Always, total=False):
    """A report as plain data."""

    steps: Annotated[
        list[Steps], "what the program's own steps took, that which took longest first; absent in older reports"
    ]
    weights: Annotated[list[WeightRow], "of a SavedModel with 16-bit weights, the largest first; absent elsewhere"]
