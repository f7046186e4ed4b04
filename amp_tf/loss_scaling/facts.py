"""What a skipped step is explained by, as plain values. No TensorFlow here."""

from __future__ import annotations

from typing import NamedTuple


class Facts(NamedTuple):
    """What is known of the last step that was skipped.

    Attributes:
        knows_gradients: whether the gradients were looked at.
        has_nonfinite_gradient: some gradient itself was NaN or infinite, not only their norm or sum.
        knows_data: whether the loss was traced, so that its data is known.
        has_nonfinite_data: the loss was computed from NaN or infinities.
        has_large_data: the loss was computed from values beyond float16's range.
    """

    knows_gradients: bool = False
    has_nonfinite_gradient: bool = False
    knows_data: bool = False
    has_nonfinite_data: bool = False
    has_large_data: bool = False


NO_FACTS = Facts()
