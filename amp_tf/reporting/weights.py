"""The report of 16-bit weights: the variables of a SavedModel, and why some stay float32."""

from __future__ import annotations

import dataclasses
import enum
import math

from amp_tf.precision import Precision
from amp_tf.reporting.files import Row
from amp_tf.reporting.text import plural

_KILOBYTE = 1e3
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
        name: its name, or its key if the name is not known.
        key: the key of its values in the checkpoint.
        shape: its shape.
        precision: the type in which its values are stored now.
        kept: why it stays float32; ``None`` if it does not.
        where: the node that kept them, if one did.
    """

    name: str
    key: str
    shape: tuple[int, ...]
    precision: Precision
    kept: Kept | None = None
    where: str = ""

    @property
    def size_before(self) -> int:
        """Its bytes in float32."""
        return 4 * math.prod(self.shape)

    @property
    def size(self) -> int:
        """Its bytes now."""
        if self.precision.is_f16:
            return self.size_before // 2
        return self.size_before

    @property
    def why(self) -> str:
        """Why it stays float32, in words."""
        if self.kept is None:
            return ""
        return self.kept.value.format(where=repr(self.where))

    def to_row(self) -> Row:
        """As a document has it."""
        return {
            "name": self.name,
            "key": self.key,
            "shape": [*self.shape],
            "precision": self.precision.value,
            "why": self.why,
        }


@dataclasses.dataclass(frozen=True)
class Weights:
    """The float32 variables of a model with 16-bit weights, the largest first."""

    variables: tuple[StoredVariable, ...]

    @property
    def stored(self) -> tuple[StoredVariable, ...]:
        """The variables stored in 16 bit."""
        return tuple(variable for variable in self.variables if variable.precision.is_f16)

    def __str__(self) -> str:
        """Says ``weights: 4 of 6 variables stored in bfloat16, 12.6 MB become 6.3 MB``.

        A line each says why the others are not.
        """
        kind = "16 bit"
        before = 0
        after = 0
        groups: dict[Kept, list[StoredVariable]] = {}
        for variable in self.variables:
            before += variable.size_before
            after += variable.size
            if variable.kept is None:
                kind = variable.precision.value
            else:
                groups.setdefault(variable.kept, []).append(variable)
        lines = [
            f"weights: {len(self.stored):,} of {len(self.variables):,} variables stored in {kind}, "
            f"{_in_words(before)} become {_in_words(after)}"
        ]
        for group in groups.values():
            size = sum(variable.size for variable in group)
            count = plural(len(group), "variable")
            example = f"such as {group[0].name!r}: {group[0].why}"
            lines.append(f"  {count} ({_in_words(size)}) in float32, {example}")
        return "\n".join(lines)


def _in_words(size: int) -> str:
    """Writes a number of bytes for people."""
    if size < _MEGABYTE:
        return f"{size / _KILOBYTE:,.1f} kB"
    return f"{size / _MEGABYTE:,.1f} MB"
