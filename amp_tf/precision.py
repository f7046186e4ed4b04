"""The three floating-point formats that automatic mixed precision chooses between."""

from __future__ import annotations

import enum
from typing import Any

# by name: data_type, significant_bits, and the largest exponent of a finite value
_FORMATS = {"float32": (1, 24, 127), "float16": (19, 11, 15), "bfloat16": (14, 8, 127)}


class Precision(enum.Enum):
    """A floating-point format, by its name in Python.

    Source of the limits: IEEE 754-2019 binary16 and binary32; bfloat16 is binary32 cut to 8
    significant bits.

    Attributes:
        data_type: its number in TensorFlow's ``DataType`` enumeration (types.proto).
        significant_bits: of a normal value, the leading one included.
        max_finite: the largest finite value.
        smallest: the smallest positive value; half of it is rounded to zero.
    """

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    data_type: int
    significant_bits: int
    max_finite: float
    smallest: float

    def __init__(self, name: Any) -> None:
        self.data_type, self.significant_bits, max_exponent = _FORMATS[name]
        self.max_finite = (2 - 2.0 ** (1 - self.significant_bits)) * 2.0**max_exponent
        self.smallest = 2.0 ** (2 - max_exponent - self.significant_bits)

    def rounds_to_one(self, value: Any) -> Any:
        """Tells, for a positive value or each of an array, whether it is rounded to 1."""
        half_ulp = 2.0**-self.significant_bits  # above 1; below 1 it is half as large
        return (1 - half_ulp / 2 <= value) & (value <= 1 + half_ulp)

    @property
    def is_f16(self) -> bool:
        """True for the two 16-bit formats."""
        return self is not Precision.FLOAT32
