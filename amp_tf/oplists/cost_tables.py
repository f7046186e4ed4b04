"""What ops take on a CPU in float32 and in bfloat16: tables of measured figures, one for each kind of CPU.

Matrix products and convolutions gain by oneDNN's bfloat16 kernels. Most element-wise ops lose: TensorFlow converts each
value to float32 and back, so that a bfloat16 Sigmoid takes three times as long as a float32 one. Where many of them
follow each other, it pays to cast once, compute in float32, and cast back.

``amp-tf calibrate`` measures a table and keeps it for this machine (:mod:`amp_tf.oplists.machine`); those in the folder
``cpu_costs`` are shipped. Only the ratios between the figures of a table matter. Figures from chains of ops in the
caches and from tensors in memory each lost on some model, so both are kept, by size.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amp_tf.errors import ConfigError
from amp_tf.oplists.costs import COSTS_AS, FREE

VERSION = 1  #: of the files
CACHED_ELEMENTS = 4_000_000  #: a larger float32 tensor does not stay in the caches until it is read again
DISPATCH = 3_000.0  #: ns for each op that TensorFlow starts, whatever its size
FEW_OPERATIONS = 8e6  #: so many of a product one thread computes; what is more is shared
#: What stands after an op in rows of their own: for products that read their second matrix turned, which oneDNN's
#: float32 kernel does slowly, and for convolutions in NCHW, which gain next to nothing.
TRANSPOSED, CHANNELS_FIRST = ", second transposed", ", channels first"
SHIPPED_FOLDER = Path(__file__).parent / "cpu_costs"

Pair = tuple[float, float]  #: in float32 and in bfloat16


@dataclasses.dataclass(frozen=True)
class ProductCost:
    """What a product takes in one type: ``operations / rate + elements * ns + start``, and more while it is small.

    Convolutions of few channels or few taps, and depthwise ones, are bound by their tensors, not by their operations.
    Products of the steps of recurrent layers are so small that one thread computes them.

    Attributes:
        rate: floating-point operations in a ns, two to a multiplication and addition.
        ns: for each element that it reads or writes.
        start: ns of its own.
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
        source: where the figures come from, for people.
        elements: ns for each element of the largest tensor of an op: in the caches, and in memory.
        other: the same for ops that are not in ``elements``.
        products: for each product; some again with :data:`TRANSPOSED` or :data:`CHANNELS_FIRST`.
        to_f16, to_float32: ns that a cast takes for each element: in the caches, in memory.
    """

    source: str
    elements: Mapping[str, tuple[Pair, Pair]]
    other: tuple[Pair, Pair]
    products: Mapping[str, tuple[ProductCost, ProductCost]]
    to_f16: Pair
    to_float32: Pair

    def of_op(self, op: str, elements: float) -> Pair:
        """What an op that is no product takes in float32 and in 16 bit, in ns."""
        if op in FREE:
            return 0.0, 0.0
        in_float32, in_f16 = self.elements.get(op, self.other)[elements > CACHED_ELEMENTS]
        return in_float32 * elements, in_f16 * elements

    def of_product(self, op: str, operations: float, elements: float, variant: str = "") -> Pair:
        """What a product takes in float32 and in 16 bit, in ns.

        Args:
            op: the op; one that is not in the table counts as a MatMul.
            operations: floating-point operations, two to a multiplication and addition.
            elements: of what it reads and writes.
            variant: :data:`TRANSPOSED` or :data:`CHANNELS_FIRST`. Where the second has no row, nothing is gained.
        """
        plain = COSTS_AS.get(op, op)
        plain = plain if plain in self.products else "MatMul"
        in_float32, in_f16 = self.products.get(plain + variant, self.products[plain])
        if variant == CHANNELS_FIRST and plain + variant not in self.products:
            in_f16 = in_float32
        return in_float32.of(operations, elements), in_f16.of(operations, elements)

    def of_cast_to_f16(self, elements: float) -> float:
        """What a cast to 16 bit takes, in ns."""
        return DISPATCH + self.to_f16[elements > CACHED_ELEMENTS] * elements

    def of_cast_to_float32(self, elements: float) -> float:
        """What a cast to float32 takes, in ns."""
        return DISPATCH + self.to_float32[elements > CACHED_ELEMENTS] * elements

    def made_careful(self, source: str) -> CostTable:
        """A table for a CPU of which nothing is known: products gain the square root of what they gain in this one.

        Args:
            source: of the new table.
        """

        def nearer(in_float32: ProductCost, in_f16: ProductCost) -> ProductCost:
            pairs = zip(dataclasses.astuple(in_float32), dataclasses.astuple(in_f16), strict=True)
            return ProductCost(*(math.sqrt(first * second) for first, second in pairs))

        products = {op: (pair[0], nearer(*pair)) for op, pair in self.products.items()}
        return dataclasses.replace(self, source=source, products=products)

    def to_json(self) -> str:
        """As a file holds it: an op on each line."""
        fields = dataclasses.asdict(self)
        fields["products"] = {op: [_figures(cost) for cost in pair] for op, pair in self.products.items()}
        lines = [f'  "version": {VERSION}']
        for name, value in fields.items():
            if isinstance(value, dict):
                rows = ",\n".join(f"    {json.dumps(op)}: {json.dumps(row)}" for op, row in sorted(value.items()))
                lines.append(f"  {json.dumps(name)}: {{\n{rows}\n  }}")
            else:
                lines.append(f"  {json.dumps(name)}: {json.dumps(value)}")
        return "{\n" + ",\n".join(lines) + "\n}\n"


def read_table(path: Path) -> CostTable:
    """A table from its file.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is no such table, or one of another version.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields.pop("version") != VERSION:
            raise ValueError("it has another version")
        table = CostTable(
            source=str(fields["source"]),
            elements={op: (_pair(row[0]), _pair(row[1])) for op, row in fields["elements"].items()},
            other=(_pair(fields["other"][0]), _pair(fields["other"][1])),
            products={op: (_product(row[0]), _product(row[1])) for op, row in fields["products"].items()},
            to_f16=_pair(fields["to_f16"]),
            to_float32=_pair(fields["to_float32"]),
        )
        if "MatMul" not in table.products:
            raise ValueError("it has no MatMul")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"this is no table of costs: {error}", where=str(path), fix="amp-tf calibrate writes it anew"
        ) from error
    return table


def _pair(values: Any) -> Pair:
    first, second = map(float, values)
    if not (math.isfinite(first) and math.isfinite(second) and min(first, second) > 0):
        raise ValueError(f"{values} are no times")
    return first, second


def _product(values: Any) -> ProductCost:
    cost = ProductCost(*map(float, values))
    rate, *others = dataclasses.astuple(cost)
    if not (math.isfinite(rate + sum(others)) and rate > 0 and min(others) >= 0):
        raise ValueError(f"{values} are no figures of a product")
    return cost


def _figures(cost: ProductCost) -> tuple[float, ...]:
    """As a file holds them; the last only where it is known."""
    figures = dataclasses.astuple(cost)
    return figures if cost.alone else figures[:-1]


SHIPPED = read_table(SHIPPED_FOLDER / "amd-zen5.json")  #: what counts where nobody says which CPU
