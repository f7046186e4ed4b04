"""What ops take on a CPU in float32 and in bfloat16: tables of measured figures, one for each kind
of CPU.

Matrix products and convolutions gain by oneDNN's bfloat16 kernels. Most element-wise ops lose:
TensorFlow converts each value to float32 and back, so that a bfloat16 Sigmoid takes three times as
long as a float32 one. Where many of them follow each other, it pays to cast once, compute in
float32, and cast back.

``amp-tf calibrate`` measures a table and keeps it for this machine
(:mod:`amp_tf.oplists.hardware`); those in ``cpu_costs`` are shipped. Only the ratios between the
figures of a table matter. What an element takes depends on how many there are: TensorFlow gives a
small tensor to one thread, and a large one leaves the caches before it is read again. So figures
are kept by size, and those of sizes between come from both neighbours.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amp_tf.errors import ConfigError
from amp_tf.files import RefusedFileError, read_regular
from amp_tf.oplists.table import Trait

VERSION = 1  #: of the files
_MOST_BYTES = 16 << 20  #: of a file; those that are shipped have 20 KB
DISPATCH = 3_000.0  #: ns for each op that TensorFlow starts, whatever its size
FEW_OPERATIONS = 8e6  #: so many of a product one thread computes; what is more is shared
#: What stands after an op in rows of their own: for products that read their second matrix
#: transposed, which oneDNN's float32 kernel does slowly, and for convolutions in NCHW, which gain
#: next to nothing unless they have one tap.
TRANSPOSED, CHANNELS_FIRST, POINTWISE_FIRST = (
    ", second transposed",
    ", channels first",
    ", channels first, one tap",
)
#: What stands after an op of which a tensor is much smaller than its result, as the scales of a
#: normalization are.
BROADCAST = ", broadcast"
SHIPPED_FOLDER = Path(__file__).parent / "cpu_costs"

#: Ops that move no data: they cost nothing in either type. Those of TensorLists and loops hand
#: tensors on.
FREE = Trait(
    """EnsureShape Enter Exit ExpandDims Identity IdentityN Merge NextIteration PreventGradient Rank
    Reshape Shape ShapeN Snapshot Squeeze StatelessWhile StopGradient Switch TensorListGetItem
    TensorListPopBack TensorListPushBack TensorListPushBackBatch TensorListSetItem While"""
)
FREE_OP = "Identity"  #: one of them: as which costs what another op does as well

#: Convolutions: op to where its filter is, as (is an input, number), and where the values of its
#: output side are.
CONVOLUTIONS: dict[str, tuple[tuple[bool, int], tuple[bool, int]]] = {
    **dict.fromkeys(
        (
            "Conv2D",
            "Conv3D",
            "DepthwiseConv2dNative",
            "_FusedConv2D",
            "_FusedConv3D",
            "_FusedDepthwiseConv2dNative",
        ),
        ((True, 1), (False, 0)),
    ),
    **dict.fromkeys(
        ("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput"),
        ((True, 1), (True, 2)),
    ),
    **dict.fromkeys(
        ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter"),
        ((False, 0), (True, 2)),
    ),
}
#: The attributes by which products of matrices read their second one transposed, and the layouts
#: with channels first.
TRANSPOSING = ("adj_y", "transpose_b")
CHANNELS_FIRST_LAYOUTS = (b"NCHW", b"NCDHW")
#: Products of many matrices at once.
BATCHED = ("BatchMatMul", "BatchMatMulV2")
#: Convolutions of which each output channel reads one input channel alone.
DEPTHWISE = frozenset(op for op in CONVOLUTIONS if "Depthwise" in op)

#: Depthwise gradients that oneDNN leaves to a kernel many times slower in 16 bit: for strides, or
#: for more taps.
SLOW_IF_STRIDED = Trait("DepthwiseConv2dNativeBackpropInput")
SLOW_IF_LARGE = Trait("DepthwiseConv2dNativeBackpropFilter")
VECTOR_TAPS = 9
SLOW, SLOWNESS = ", slow", 25.0

#: Gradients of a convolution's input, whose result has the channels that its filter reads.
INPUT_GRADIENTS = frozenset(op for op in CONVOLUTIONS if "BackpropInput" in op)
#: float32 values in a vector of AVX-512: oneDNN computes so many channels of a convolution's result
#: at a time.
LANES = 16

#: Other products, each with the one whose kernel it runs.
COSTS_AS = {
    "BatchMatMul": "BatchMatMulV2",
    "Einsum": "BatchMatMulV2",
    "_FusedConv2D": "Conv2D",
    "_FusedConv3D": "Conv3D",
    "_FusedDepthwiseConv2dNative": "DepthwiseConv2dNative",
}

Pair = tuple[float, float]  #: in float32 and in bfloat16


@dataclasses.dataclass(frozen=True)
class ProductCost:
    """What a product takes in one type: ``operations / rate + elements * ns + start``, and more
    while it is small.

    Convolutions of few channels or few taps, and depthwise ones, are bound by their tensors, not by
    their operations. Products of the steps of recurrent layers are so small that one thread
    computes them.

    Attributes:
        rate: floating-point operations in a ns, two to a multiplication and addition.
        ns, start: for each element that it reads or writes, and of its own.
        alone: ns more for each of the first :data:`FEW_OPERATIONS`.
    """

    rate: float
    ns: float
    start: float
    alone: float = 0.0

    def of(self, operations: float, elements: float) -> float:
        """The time in ns."""
        few = min(operations, FEW_OPERATIONS)
        return operations / self.rate + elements * self.ns + self.start + few * self.alone


@dataclasses.dataclass(frozen=True, eq=False)
class CostTable:
    """What ops take on one kind of CPU.

    Attributes:
        elements: ns for each element of the largest tensor of an op, at each of the sizes.
        other: the same for ops that are not in ``elements``.
        products: for each product; some again with :data:`TRANSPOSED`, :data:`CHANNELS_FIRST` or
            :data:`POINTWISE_FIRST`.
        to_f16, to_float32: ns that a cast takes for each element, at each of the sizes.
        sizes: elements of the tensors that were measured, from small to large.
    """

    source: str
    elements: Mapping[str, tuple[Pair, ...]]
    other: tuple[Pair, ...]
    products: Mapping[str, tuple[ProductCost, ProductCost]]
    to_f16: tuple[float, ...]
    to_float32: tuple[float, ...]
    sizes: tuple[float, ...]

    @property
    def gains(self) -> bool:
        """Whether some product is computed faster in 16 bit, be it large enough."""
        plain = (pair for op, pair in self.products.items() if ", " not in op)
        return any(in_f16.rate > in_float32.rate for in_float32, in_f16 in plain)

    def of_op(self, op: str, elements: float, variant: str = "") -> Pair:
        """What an op that is not a product takes in float32 and in 16 bit, in ns, by its largest
        tensor's elements.

        The variant stands after the op in the name of its row, if there is such a row.
        """
        if op in FREE:
            return 0.0, 0.0
        row = self.elements.get(op + variant) or self.elements.get(op, self.other)
        in_float32, in_f16 = (self._time(elements, figures) for figures in zip(*row, strict=True))
        return in_float32, in_f16

    def of_product(self, op: str, operations: float, elements: float, variant: str = "") -> Pair:
        """What a product takes in float32 and in 16 bit, in ns, by the elements of what it reads
        and writes.

        One that is not in the table counts as a MatMul. Channels first without a row gain nothing.
        """
        plain = next(
            (name for name in (op, COSTS_AS.get(op, op)) if name in self.products), "MatMul"
        )
        in_float32, in_f16 = self.products.get(plain + variant, self.products[plain])
        if variant == SLOW:
            time = in_float32.of(operations, elements)
            return time, SLOWNESS * time
        if variant in (CHANNELS_FIRST, POINTWISE_FIRST) and plain + variant not in self.products:
            in_f16 = in_float32
        return in_float32.of(operations, elements), in_f16.of(operations, elements)

    def of_casts(self, elements: float) -> Pair:
        """What casts of so many elements take, to float32 and to 16 bit, in ns."""
        return DISPATCH + self._time(elements, self.to_float32), DISPATCH + self._time(
            elements, self.to_f16
        )

    def _time(self, elements: float, figures: Sequence[float]) -> float:
        """Times between two sizes lie on the line between theirs; smaller or larger ones go by the
        nearest figure.
        """
        nearest = min(max(elements, self.sizes[0]), self.sizes[-1])
        place = bisect.bisect(self.sizes, nearest, hi=len(self.sizes) - 1)
        start, end = self.sizes[place - 1 : place + 1]
        nearness = (nearest - start) / (end - start)
        time = figures[place - 1] * start * (1 - nearness) + figures[place] * end * nearness
        return time * (elements / nearest)

    def conservative(self, source: str) -> CostTable:
        """The table for a CPU of which nothing is known: products gain the square root of what they
        gain here.
        """

        def nearer(in_float32: ProductCost, in_f16: ProductCost) -> ProductCost:
            pairs = zip(dataclasses.astuple(in_float32), dataclasses.astuple(in_f16), strict=True)
            return ProductCost(*(math.sqrt(first * second) for first, second in pairs))

        products = {op: (pair[0], nearer(*pair)) for op, pair in self.products.items()}
        return dataclasses.replace(self, source=source, products=products)

    def to_json(self) -> str:
        """As a file holds it: an op on each line."""
        fields = dataclasses.asdict(self)
        fields["products"] = {
            op: [dataclasses.astuple(cost) for cost in pair] for op, pair in self.products.items()
        }
        lines = [f'  "version": {VERSION}']
        for name, value in fields.items():
            if isinstance(value, dict):
                rows = ",\n".join(
                    f"    {json.dumps(op)}: {json.dumps(row)}" for op, row in sorted(value.items())
                )
                lines.append(f"  {json.dumps(name)}: {{\n{rows}\n  }}")
            else:
                lines.append(f"  {json.dumps(name)}: {json.dumps(value)}")
        return "{\n" + ",\n".join(lines) + "\n}\n"


def padding_factor(op: str, kernel: Sequence[int] | None, variant: str = "") -> float:
    """By how much the operations of a product grow because its kernel pads what it computes.

    The channels of a convolution's result fill whole vectors. An input gradient of 3 channels
    counts 84 operations in a ns, where others reach 500, because it computes 16. With channels
    first, in depthwise ones and in products of matrices it is not so. The kernel is given by its
    shape: taps, channels in, channels out.
    """
    if kernel is None or variant or op not in CONVOLUTIONS or op in DEPTHWISE:
        return 1.0
    channels = kernel[-2] if op in INPUT_GRADIENTS else kernel[-1]
    return math.ceil(channels / LANES) * LANES / channels if channels > 0 else 1.0


def read_table(path: Path) -> CostTable:
    """A table from its file.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is not such a table, or one of another version.
    """
    try:
        fields = json.loads(read_regular(path, _MOST_BYTES))
        if fields.pop("version") != VERSION:
            raise ValueError("it has another version")
        sizes = tuple(map(float, fields["sizes"]))
        if len(sizes) < 2 or not all(
            before < size < math.inf for before, size in itertools.pairwise((0, *sizes))
        ):
            raise ValueError(f"{sizes} are not sizes from small to large")
        table = CostTable(
            source=str(fields["source"]),
            elements={op: _times(row, len(sizes), 2) for op, row in fields["elements"].items()},
            other=_times(fields["other"], len(sizes), 2),
            products={
                op: (_product(row[0]), _product(row[1])) for op, row in fields["products"].items()
            },
            to_f16=_times(fields["to_f16"], len(sizes)),
            to_float32=_times(fields["to_float32"], len(sizes)),
            sizes=sizes,
        )
        if "MatMul" not in table.products:
            raise ValueError("it has no MatMul")
    except RefusedFileError as error:
        fix = "Delete it; amp-tf calibrate writes it again"
        raise ConfigError(
            f"this is not a table of costs: {error.strerror}", where=str(path), fix=fix
        ) from None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"this is not a table of costs: {error}",
            where=str(path),
            fix="amp-tf calibrate writes it again",
        ) from error
    return table


def _times(values: Any, count: int, *rest: int) -> Any:
    """So many times as a tuple, or rows of times where there are further numbers."""
    times = tuple(_times(row, *rest) if rest else float(row) for row in values)
    if len(times) != count or not (rest or all(0 < time < math.inf for time in times)):
        raise ValueError(f"{values} are not {count} {'rows of ' if rest else ''}positive times")
    return times


def _product(values: Any) -> ProductCost:
    cost = ProductCost(*map(float, values))
    rate, *others = dataclasses.astuple(cost)
    if not (math.isfinite(rate + sum(others)) and rate > 0 and min(others) >= 0):
        raise ValueError(f"{values} are not figures of a product")
    return cost


SHIPPED = read_table(SHIPPED_FOLDER / "amd-zen5.json")  #: what counts where nobody says which CPU
