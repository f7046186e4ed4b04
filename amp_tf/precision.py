"""The three floating-point formats that automatic mixed precision chooses between."""

from __future__ import annotations

import enum


class Precision(enum.Enum):
    """A floating-point format, with the facts that a rewrite or a loss scale needs to know about it.

    Attributes:
        value: the name that Python users know (``tf.float16.name``).
        data_type: the number of the format in TensorFlow's ``DataType`` enumeration (types.proto).
        max_finite: the largest finite value.
        smallest_normal: the smallest positive normal value; smaller gradients lose bits.
        smallest: the smallest positive value; half of it is rounded to zero.
        significant_bits: of a normal value, the leading one included.

    Source of the limits: IEEE 754-2019 binary16 and binary32; bfloat16 is binary32 cut to 8 significant bits.
    """

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    @property
    def data_type(self) -> int:
        return _DATA_TYPE[self]

    @property
    def max_finite(self) -> float:
        return _MAX_FINITE[self]

    @property
    def smallest_normal(self) -> float:
        return _SMALLEST_NORMAL[self]

    @property
    def smallest(self) -> float:
        return _SMALLEST[self]

    @property
    def significant_bits(self) -> int:
        return _SIGNIFICANT_BITS[self]

    def rounds_to_one(self, value: float) -> bool:
        """Whether a positive value is rounded to 1."""
        return 1 - 2.0 ** -(self.significant_bits + 1) <= value <= 1 + 2.0**-self.significant_bits

    @property
    def is_f16(self) -> bool:
        """Whether this is one of the two 16-bit formats."""
        return self is not Precision.FLOAT32

    @property
    def needs_loss_scaling(self) -> bool:
        """Whether gradients of ordinary size underflow: true for float16 alone, bfloat16 has float32's range."""
        return self is Precision.FLOAT16


_DATA_TYPE = {Precision.FLOAT32: 1, Precision.FLOAT16: 19, Precision.BFLOAT16: 14}
_SIGNIFICANT_BITS = {Precision.FLOAT32: 24, Precision.FLOAT16: 11, Precision.BFLOAT16: 8}
_MAX_FINITE = {
    Precision.FLOAT32: (2 - 2.0**-23) * 2.0**127,
    Precision.FLOAT16: 65504.0,
    Precision.BFLOAT16: (2 - 2.0**-7) * 2.0**127,
}
_SMALLEST_NORMAL = {
    Precision.FLOAT32: 2.0**-126,
    Precision.FLOAT16: 2.0**-14,
    Precision.BFLOAT16: 2.0**-126,
}
_SMALLEST = {
    Precision.FLOAT32: 2.0**-149,
    Precision.FLOAT16: 2.0**-24,
    Precision.BFLOAT16: 2.0**-133,
}
