"""Which variables of a SavedModel are stored in 16 bit, and why the others are not."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math

from amp_tf.precision import Precision

_UNIT = 1e6


class Kept(enum.Enum):
    """Why a variable stays float32; each completes "'name': …"."""

    UNREAD = "no converted node reads it"
    READ = "is read in float32 by {where}"
    WRITTEN = "is written by {where}"
    HANDED_ON = "is handed to {where}, behind which nobody sees its readers"
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
        before = sum(math.prod(variable.shape) * 4 for variable in self.variables) / _UNIT
        after = sum(variable.size for variable in self.variables) / _UNIT
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
            size = sum(variable.size for variable in group) / _UNIT
            count = "1 variable" if len(group) == 1 else f"{len(group):,} variables"
            lines.append(f"  {count} ({size:,.1f} MB) in float32, such as {group[0].name!r}: {group[0].why}")
        return "\n".join(lines)
