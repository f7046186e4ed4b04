"""Why a node has the precision that it has: typed reasons, and the words for each."""

from __future__ import annotations

import dataclasses
import enum


class Code(enum.IntEnum):
    """The code of a reason: below 100 it converts a node, else leaves it in float32.

    Reports have names, not numbers.

    Attributes:
        words: the reason as a sentence about "it", the node; ``{cause}`` stands for the node that
            brought it about.
    """

    words: str

    def __new__(cls, value: int, words: str = "") -> Code:
        code = int.__new__(cls, value)
        code._value_ = value
        code.words = words
        return code

    ALLOW_LIST = 1, "its op is on the allow list"
    FORCED_BY_LEVEL = 2, "the level is UNSAFE_FORCE_ALL"
    FORCED_BY_NAME = 3, "its name matches a pattern of force_f16"
    FORCED_BY_SCOPE = 4, "it was made inside amp_tf.scope"
    BETWEEN_ALLOW = 5, "it lies between converted nodes, next to {cause}"
    AFTER_ALLOW = 6, "it directly follows the converted node {cause}"
    BESIDE_ALLOW = 7, "it only moves values and is connected to the converted node {cause}"
    LIST_FOLLOWS = 8, "it shares a TensorList with the converted node {cause}"
    LOOP_FOLLOWS = 9, "it closes a loop whose other end is converted"
    CAST_FOLLOWS = 10, "it is a cast whose readers are all converted"
    CAST_REPEATS = 11, "it is a cast to 16 bit of a converted value"
    LIST_SHARED = (
        13,
        "its TensorList is used by several functions, and by each of them for 16-bit values",
    )

    NO_FLOAT32 = 100, "it handles no float32 values"
    NOT_LISTED = 101, "its op is on no list"
    NO_ALLOW_NEIGHBOUR = 102, "it is connected to no converted node"
    DENY_LIST = 103, "its op is on the deny list"
    AFTER_DENY = 104, "it uses values of the deny-list node {cause}"
    PRESERVED = 105, "it is an input or an output of the graph, whose type must not change"
    OTHER_DEVICE = 106, "it is on a device for which amp_tf converts nothing here"
    KEPT_BY_NAME = 107, "its name matches a pattern of keep_float32"
    KEPT_BY_SCOPE = 108, 'it was made inside amp_tf.scope("float32")'
    TYPE_NOT_ALLOWED = 109, "the definition of its op does not allow the 16-bit type"
    NO_KERNEL = 110, "TensorFlow has no 16-bit kernel of its op for its device"
    QUANTIZED = 111, "it works on quantized values"
    REFERENCE_VARIABLE = 112, "it reads a reference variable"
    CALLS_FUNCTION = 113, "it calls functions, which decide its types"
    LIST_ESCAPES = (
        114,
        "its TensorList leaves the graph, or is used by a node that cannot be converted",
    )
    LIST_DENIED = 115, "it shares a TensorList with {cause}, which stays in float32"
    LOOP_DENIED = 116, "the other end of its loop stays in float32"
    NO_TARGET = 117, "nothing is converted on this machine"
    NOTHING_TO_CONVERT = 118, "the graph has no node that the allow list converts"
    DOES_NOT_PAY = 119, "it would not be faster in 16 bit"
    SCALES_FILTER = (
        120,
        "it normalizes: amp_tf moved it from the result of a convolution to its filter",
    )
    BEYOND_RANGE = (
        121,
        "it uses a constant or weight that 16 bit would make infinite, zero or one: {cause}",
    )
    SUMS = 122, "it adds up many values, and its 16-bit kernel would round after each"
    AFTER_PRODUCTS = (
        123,
        "no matmul or convolution uses its result, which goes to a variable or to the caller",
    )
    WHOLE_NUMBERS = 124, "its result becomes an integer, a phase or a position: {cause}"
    COMPARED = (
        125,
        "it is compared for equality, in float32, with the values that it was selected from",
    )
    RUNNING_SUM = 126, "it is a part of a running sum, from which 16 bit would lose small terms"
    LEAVES_RANGE = (
        128,
        "it is a square or a quotient, which leaves float16's range for ordinary values",
    )
    INACCURATE = 129, "its 16-bit kernel loses small results"
    CARRIED = 130, "it passes a float32 value through unchanged, also to nodes in float32"
    NO_FUSED_KERNEL = (
        133,
        "TensorFlow fused it with what follows, and the fused kernel has no 16-bit form here",
    )
    JOINED = (
        134,
        "it combines float32 data with the result of a matmul or convolution, at the size of the "
        "data",
    )
    PICKED = 136, "it picks a part of a larger float32 tensor; only that part is cast"
    ROUNDED_BEFORE = (
        137,
        "a float32 kernel computes it, from operands that amp_tf has rounded to 16 bit before",
    )
    NEEDED = (
        138,
        "its rounding would show in a difference, a root, a logarithm or a softmax that it is or "
        "feeds: {cause}",
    )
    DECOMPOSED = (
        139,
        "a matrix decomposition, or a product with what it gave, would magnify its rounding: "
        "{cause}",
    )

    @property
    def converts(self) -> bool:
        """True if the node is converted."""
        return self < Code.NO_FLOAT32


Rule = Code  #: the public name

#: The reasons of nodes that a user converts. Rules leave their paint unless the node cannot be 16
#: bit.
FORCED = frozenset({Code.FORCED_BY_LEVEL, Code.FORCED_BY_NAME, Code.FORCED_BY_SCOPE})
#: The reasons for which a product cannot be 16 bit.
IMPOSSIBLE = frozenset({Code.NO_FUSED_KERNEL, Code.NO_KERNEL, Code.TYPE_NOT_ALLOWED})


_MOST_DIGITS = 3  # of an estimate, so that two that are nearly equal can be told apart


@dataclasses.dataclass(frozen=True)
class Balance:
    """Two estimates for a set of connected nodes, which can only be converted together.

    Attributes:
        in_f16: their time in 16 bit in ns, with the casts at the border of the set.
        in_float32: their time in float32 in ns.
        batch: the batch size that was taken for an open one; 0 where the graph's shapes were taken
            as they are.
    """

    in_f16: float
    in_float32: float
    batch: int = 0

    def __str__(self) -> str:
        """Such as ``it and the nodes to convert with it would take 9.1 µs in 16 bit with casts, 8.7
        µs in float32``.
        """
        in_f16, in_float32 = self.in_f16 / 1e3, self.in_float32 / 1e3
        digits = 1
        while digits < _MOST_DIGITS and f"{in_f16:.{digits}f}" == f"{in_float32:.{digits}f}":
            digits += 1
        times = (
            f"{in_f16:.{digits}f} µs in 16 bit with casts, {in_float32:.{digits}f} µs in float32"
        )
        at_batch = f" at batch size {self.batch:,}" if self.batch else ""
        return f"it and the nodes to convert with it would take {times}{at_batch}"


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why a node has its precision.

    Attributes:
        code: what decided.
        cause: the name of the node that brought it about, empty where none is named.
        detail: more words, empty for none.
        balance: the two figures that :attr:`Code.DOES_NOT_PAY` weighed, where it weighed some.
    """

    code: Code
    cause: str = ""
    detail: str = ""
    balance: Balance | None = None

    @property
    def rule(self) -> Code:
        """The code, by its public name."""
        return self.code

    def __str__(self) -> str:
        words = self.code.words if self.cause else self.code.words.replace(": {cause}", "")
        words = words.replace("{cause}", repr(self.cause))
        return f"{words} ({self.detail})" if self.detail else words
