"""Cost tables: measured times of ops in float32 and in bfloat16, one table for each kind of CPU.

Matrix products and convolutions gain by oneDNN's bfloat16 kernels. Most element-wise ops lose:
TensorFlow converts each value to float32 and back, so that a bfloat16 Sigmoid takes three times as
long as a float32 one. In a chain of such ops it pays to cast once, compute in float32, and cast
back.

``amp-tf calibrate`` measures a table and keeps it for this machine
(:mod:`amp_tf.oplists.hardware`); the tables in ``cpu_costs`` are shipped. Only the ratios between
the figures of a table matter. The time of an element depends on the size of the tensor: one thread
computes a small tensor, and a large one leaves the caches before it is read again. So figures are
kept by size, and a size between two of them is interpolated.
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
FEW_OPERATIONS = 8e6  #: one thread computes so many operations of a product; threads share the rest
# Suffixes of op names: rows for variants of an op.
#: Products that read their second matrix transposed, which is slow in oneDNN's float32 kernel.
TRANSPOSED = ", second transposed"
#: Convolutions in NCHW, which gain next to nothing unless they have one tap.
CHANNELS_FIRST = ", channels first"
POINTWISE_FIRST = ", channels first, one tap"
#: Ops with an input much smaller than their result, such as the scale of a normalization.
BROADCAST = ", broadcast"
SHIPPED_FOLDER = Path(__file__).parent / "cpu_costs"

#: Ops that move no data, and so cost nothing. The ops of TensorLists and loops hand tensors on.
FREE = Trait(
    """EnsureShape Enter Exit ExpandDims Identity IdentityN Merge NextIteration PreventGradient Rank
    Reshape Shape ShapeN Snapshot Squeeze StatelessWhile StopGradient Switch TensorListGetItem
    TensorListPopBack TensorListPushBack TensorListPushBackBatch TensorListSetItem While"""
)
FREE_OP = "Identity"  #: the row of ops that another op computes, and so cost nothing

_FORWARD = Trait(
    "Conv2D Conv3D DepthwiseConv2dNative _FusedConv2D _FusedConv3D _FusedDepthwiseConv2dNative"
)
#: Gradients of a convolution's input, whose result has the channels that its filter reads.
INPUT_GRADIENTS = Trait(
    "Conv2DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput"
)
_FILTER_GRADIENTS = Trait(
    "Conv2DBackpropFilter Conv3DBackpropFilterV2 DepthwiseConv2dNativeBackpropFilter"
)
#: The inputs that are each convolution's filter and the values on its output side; -1 stands for
#: its result.
CONVOLUTIONS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(sorted(_FORWARD), (1, -1)),
    **dict.fromkeys(sorted(INPUT_GRADIENTS), (1, 2)),
    **dict.fromkeys(sorted(_FILTER_GRADIENTS), (-1, 2)),
}
#: The attributes by which products of matrices read their second one transposed.
TRANSPOSING = ("adj_y", "transpose_b")
#: The layouts with channels first.
CHANNELS_FIRST_LAYOUTS = (b"NCHW", b"NCDHW")
#: Products of many matrices at once.
BATCHED = ("BatchMatMul", "BatchMatMulV2")
#: Convolutions whose output channels read one input channel each.
DEPTHWISE = frozenset(op for op in CONVOLUTIONS if "Depthwise" in op)

# Depthwise gradients for which oneDNN uses a kernel that is many times slower in 16 bit.
SLOW_IF_STRIDED = Trait("DepthwiseConv2dNativeBackpropInput")
SLOW_IF_LARGE = Trait("DepthwiseConv2dNativeBackpropFilter")  #: with more than VECTOR_TAPS taps
VECTOR_TAPS = 9
SLOW = ", slow"  #: their suffix
SLOWNESS = 25.0  #: times float32's time

#: The float32 values in a vector of AVX-512: oneDNN computes so many channels at a time.
LANES = 16

#: Further products, each with the product whose kernel it runs.
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
    """The cost of a product in one type.

    Its time is ``operations / rate + elements * ns + results * written + start``, and ``alone``
    more for each of the first :data:`FEW_OPERATIONS`. Convolutions of few channels or few taps, and
    depthwise ones, are bound by their tensors, not by their operations. Products in the steps of
    recurrent layers are so small that one thread computes them. A filter gradient of a small image
    writes more than it reads: oneDNN adds it up in float32 and then rounds it.

    Attributes:
        rate: floating-point operations in a ns, two to a multiplication and addition.
        ns: time of each element that it reads or writes.
        start: ns of its own.
        alone: ns more for each of the first operations.
        written: ns more for each element of its result.
    """

    rate: float
    ns: float
    start: float
    alone: float = 0.0
    written: float = 0.0

    def of(self, operations: float, elements: float, results: float = 0.0) -> float:
        """The time in ns.

        Args:
            operations: floating-point operations.
            elements: of all tensors that it reads and writes.
            results: elements of its result.
        """
        few = min(operations, FEW_OPERATIONS)
        moved = elements * self.ns + results * self.written
        return operations / self.rate + moved + self.start + few * self.alone


@dataclasses.dataclass(frozen=True, eq=False)
class CostTable:
    """The costs of ops on one kind of CPU.

    Attributes:
        source: the machine that was measured, for people.
        elements: ns for each element of an op's largest tensor, at each of the sizes.
        other: the same for ops that are not in ``elements``.
        products: the costs of each product, and of some variants, whose names end with
            :data:`TRANSPOSED`, :data:`CHANNELS_FIRST` or :data:`POINTWISE_FIRST`.
        to_f16: ns for each element of a cast to 16 bit, at each of the sizes.
        to_float32: the same for casts to float32.
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
        """True if some product is faster in 16 bit when it is large enough."""
        for op, (in_float32, in_f16) in self.products.items():
            if ", " not in op and in_f16.rate > in_float32.rate:
                return True
        return False

    def of_op(self, op: str, elements: float, variant: str = "") -> Pair:
        """The time of an op that is not a product.

        Args:
            op: the op.
            elements: of its largest tensor.
            variant: the suffix of its row, if there is such a row.

        Returns:
            ns in float32 and in 16 bit.
        """
        if op in FREE:
            return 0.0, 0.0
        row = self.elements.get(op + variant) or self.elements.get(op, self.other)
        in_float32, in_f16 = zip(*row, strict=True)
        return self._time(elements, in_float32), self._time(elements, in_f16)

    def of_product(
        self, op: str, operations: float, elements: float, variant: str = "", results: float = 0.0
    ) -> Pair:
        """The time of a product; one that is not in the table counts as a MatMul.

        Args:
            op: the product.
            operations: floating-point operations.
            elements: of all tensors that it reads and writes.
            variant: the suffix of its row. With channels first and no row, nothing is gained.
            results: elements of its result.

        Returns:
            ns in float32 and in 16 bit.
        """
        plain = op if op in self.products else COSTS_AS.get(op, op)
        if plain not in self.products:
            plain = "MatMul"
        row = plain + variant
        in_float32, in_f16 = self.products.get(row, self.products[plain])
        time = in_float32.of(operations, elements, results)
        if variant == SLOW:
            return time, SLOWNESS * time
        if variant in (CHANNELS_FIRST, POINTWISE_FIRST) and row not in self.products:
            return time, time
        return time, in_f16.of(operations, elements, results)

    def of_casts(self, elements: float) -> Pair:
        """The time of casts of so many elements: ns to float32 and to 16 bit."""
        to_float32 = self._time(elements, self.to_float32)
        to_f16 = self._time(elements, self.to_f16)
        return DISPATCH + to_float32, DISPATCH + to_f16

    def _time(self, elements: float, figures: Sequence[float]) -> float:
        """Interpolates the time between two sizes; beyond all sizes the nearest figure counts."""
        nearest = min(max(elements, self.sizes[0]), self.sizes[-1])
        place = bisect.bisect(self.sizes, nearest, hi=len(self.sizes) - 1)
        start, end = self.sizes[place - 1 : place + 1]
        nearness = (nearest - start) / (end - start)
        time = figures[place - 1] * start * (1 - nearness) + figures[place] * end * nearness
        return time * (elements / nearest)

    def conservative(self, source: str) -> CostTable:
        """The table for an unknown CPU: products gain the square root of their gain here."""
        products = {}
        for op, (in_float32, in_f16) in self.products.items():
            figures = zip(dataclasses.astuple(in_float32), dataclasses.astuple(in_f16), strict=True)
            nearer = ProductCost(*(math.sqrt(one * other) for one, other in figures))
            products[op] = (in_float32, nearer)
        return dataclasses.replace(self, source=source, products=products)

    def to_json(self) -> str:
        """The text of its file, with an op on each line."""
        fields = dataclasses.asdict(self)
        for op, pair in self.products.items():
            fields["products"][op] = list(map(dataclasses.astuple, pair))
        lines = [f'  "version": {VERSION}']
        for name, value in fields.items():
            text = json.dumps(value)
            if isinstance(value, dict):
                rows = [f"    {json.dumps(op)}: {json.dumps(value[op])}" for op in sorted(value)]
                text = "{\n" + ",\n".join(rows) + "\n  }"
            lines.append(f"  {json.dumps(name)}: {text}")
        return "{\n" + ",\n".join(lines) + "\n}\n"


def padding_factor(op: str, kernel: Sequence[int] | None, variant: str = "") -> float:
    """The factor by which a product's operations grow because its kernel pads channels.

    The channels of a convolution's result fill whole vectors. An input gradient of 3 channels
    counts 84 operations in a ns, where others reach 500, because it computes 16. Products with
    channels first, depthwise ones and products of matrices are not padded.

    Args:
        op: the product.
        kernel: the shape of its filter: taps, channels in, channels out.
        variant: the suffix of its row.
    """
    if kernel is None or variant or op not in CONVOLUTIONS or op in DEPTHWISE:
        return 1.0
    channels = kernel[-2] if op in INPUT_GRADIENTS else kernel[-1]
    if channels <= 0:
        return 1.0
    return math.ceil(channels / LANES) * LANES / channels


def read_table(path: Path) -> CostTable:
    """Reads a table from its file.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is not such a table, or one of another version.
    """
    try:
        return _table(json.loads(read_regular(path, _MOST_BYTES)))
    except RefusedFileError as error:
        raise ConfigError(
            f"this is not a table of costs: {error.strerror}",
            where=str(path),
            fix="Delete it; amp-tf calibrate writes it again",
        ) from None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"this is not a table of costs: {error}",
            where=str(path),
            fix="amp-tf calibrate writes it again",
        ) from error


def _table(fields: Any) -> CostTable:
    """Makes the table from a file's content.

    Wrong content raises a ValueError, or an error of Python's own.
    """
    if fields["version"] != VERSION:
        raise ValueError("it has another version")
    sizes = _times(fields["sizes"])
    if len(sizes) < 2 or any(before >= size for before, size in itertools.pairwise(sizes)):
        raise ValueError(f"{sizes} are not sizes from small to large")
    count = len(sizes)
    elements = {op: _pairs(row, count) for op, row in fields["elements"].items()}
    products = {}
    for op, row in fields["products"].items():
        products[op] = (_product(row[0]), _product(row[1]))
    if "MatMul" not in products:
        raise ValueError("it has no MatMul")
    return CostTable(
        source=str(fields["source"]),
        elements=elements,
        other=_pairs(fields["other"], count),
        products=products,
        to_f16=_times(fields["to_f16"], count),
        to_float32=_times(fields["to_float32"], count),
        sizes=sizes,
    )


def _times(values: Any, count: int | None = None) -> tuple[float, ...]:
    """So many positive numbers."""
    times = tuple(map(float, values))
    if not all(0 < time < math.inf for time in times) or count not in (None, len(times)):
        raise ValueError(f"{values} are not {count or 'some'} positive times")
    return times


def _pairs(rows: Any, count: int) -> tuple[Pair, ...]:
    """So many times in float32 and in 16 bit."""
    if len(rows) != count:
        raise ValueError(f"{rows} are not {count} rows of positive times")
    pairs = []
    for row in rows:
        in_float32, in_f16 = _times(row, 2)
        pairs.append((in_float32, in_f16))
    return tuple(pairs)


def _product(values: Any) -> ProductCost:
    cost = ProductCost(*map(float, values))
    rate, *others = dataclasses.astuple(cost)
    if not (math.isfinite(rate + sum(others)) and rate > 0 and min(others) >= 0):
        raise ValueError(f"{values} are not figures of a product")
    return cost


SHIPPED = read_table(SHIPPED_FOLDER / "amd-zen5.json")  #: the table if the CPU is not given
