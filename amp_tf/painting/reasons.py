"""Why a node has the precision that it has: typed reasons, and the words for each."""

from __future__ import annotations

import dataclasses
import enum


class Rule(enum.IntEnum):
    """The rule that decided. Values below 100 convert a node; the others leave it in float32."""

    ALLOW_LIST = 1
    FORCED_BY_LEVEL = 2
    FORCED_BY_NAME = 3
    FORCED_BY_SCOPE = 4
    BETWEEN_ALLOW = 5
    AFTER_ALLOW = 6
    BESIDE_ALLOW = 7
    LIST_FOLLOWS = 8
    LOOP_FOLLOWS = 9
    CAST_FOLLOWS = 10
    CAST_REPEATS = 11
    COMPARES = 12
    LIST_SHARED = 13

    NO_FLOAT32 = 100
    NOT_LISTED = 101
    NO_ALLOW_NEIGHBOUR = 102
    DENY_LIST = 103
    AFTER_DENY = 104
    PRESERVED = 105
    OTHER_DEVICE = 106
    KEPT_BY_NAME = 107
    KEPT_BY_SCOPE = 108
    TYPE_NOT_ALLOWED = 109
    NO_KERNEL = 110
    QUANTIZED = 111
    REFERENCE_VARIABLE = 112
    CALLS_FUNCTION = 113
    LIST_ESCAPES = 114
    LIST_DENIED = 115
    LOOP_DENIED = 116
    NO_TARGET = 117
    NOTHING_TO_CONVERT = 118
    DOES_NOT_PAY = 119
    SCALES_FILTER = 120
    BEYOND_RANGE = 121
    SUMS = 122
    AFTER_PRODUCTS = 123
    WHOLE_NUMBERS = 124
    COMPARED = 125
    RUNNING_SUM = 126
    LEAVES_RANGE = 128
    INACCURATE = 129
    CARRIED = 130
    NO_FUSED_KERNEL = 133
    JOINED = 134
    KEPT_BY_LOCK = 135
    PICKED = 136
    NEEDED = 138

    @property
    def converts(self) -> bool:
        """Whether the rule converts a node."""
        return self < Rule.NO_FLOAT32

    @property
    def words(self) -> str:
        """The rule as a sentence about "it", the node; ``{cause}`` stands for the node that brought it about."""
        return _WORDS[self]


#: The rules by which a user converts nodes: no other rule takes their paint off but where 16 bit cannot be.
FORCED = frozenset({Rule.FORCED_BY_LEVEL, Rule.FORCED_BY_NAME, Rule.FORCED_BY_SCOPE})
#: The rules by which a product cannot be 16 bit.
IMPOSSIBLE = frozenset({Rule.NO_FUSED_KERNEL, Rule.NO_KERNEL, Rule.TYPE_NOT_ALLOWED})

_WORDS = {
    Rule.ALLOW_LIST: "its op is on the allow list",
    Rule.FORCED_BY_LEVEL: "the level is UNSAFE_FORCE_ALL",
    Rule.FORCED_BY_NAME: "its name matches a force_f16 rule",
    Rule.FORCED_BY_SCOPE: "it was made inside amp_tf.scope",
    Rule.BETWEEN_ALLOW: "it lies between converted nodes, next to {cause}",
    Rule.AFTER_ALLOW: "it directly follows the converted node {cause}",
    Rule.BESIDE_ALLOW: "it only moves values and is connected to the converted node {cause}",
    Rule.LIST_FOLLOWS: "it shares a TensorList with the converted node {cause}",
    Rule.LOOP_FOLLOWS: "it closes a loop whose other end is converted",
    Rule.CAST_FOLLOWS: "it is a cast whose readers are all converted",
    Rule.CAST_REPEATS: "it is a cast to 16 bit of a converted value",
    Rule.COMPARES: "it compares a converted maximum with the values that it was taken from",
    Rule.LIST_SHARED: "functions share its TensorList, and what this holds is 16 bit before or after it in all of them",
    Rule.NO_FLOAT32: "it handles no float32 values",
    Rule.NOT_LISTED: "its op is on no list",
    Rule.NO_ALLOW_NEIGHBOUR: "it is connected to no converted node",
    Rule.DENY_LIST: "its op is on the deny list",
    Rule.AFTER_DENY: "it uses values of the deny-list node {cause}",
    Rule.PRESERVED: "it is fed, fetched or otherwise preserved",
    Rule.OTHER_DEVICE: "it is on a device that is not converted",
    Rule.KEPT_BY_NAME: "its name matches a keep_float32 rule",
    Rule.KEPT_BY_LOCK: "the lock file keeps it in float32",
    Rule.KEPT_BY_SCOPE: 'it was made inside amp_tf.scope("float32")',
    Rule.TYPE_NOT_ALLOWED: "the definition of its op does not allow the 16-bit type",
    Rule.NO_KERNEL: "TensorFlow has no 16-bit kernel of its op for its device",
    Rule.NO_FUSED_KERNEL: "TensorFlow fused it with what follows, and the fused kernel has no 16-bit form here",
    Rule.QUANTIZED: "it works on quantized values",
    Rule.REFERENCE_VARIABLE: "it reads a reference variable",
    Rule.CALLS_FUNCTION: "its types belong to the functions that it calls",
    Rule.LIST_ESCAPES: "its TensorList leaves the graph or a node of it cannot be converted",
    Rule.LIST_DENIED: "it shares a TensorList with {cause}, which stays in float32",
    Rule.LOOP_DENIED: "the other end of its loop stays in float32",
    Rule.NO_TARGET: "no device of this machine is converted",
    Rule.NOTHING_TO_CONVERT: "the graph has no node that the allow list converts",
    Rule.DOES_NOT_PAY: "it would not be faster in 16 bit",
    Rule.SCALES_FILTER: "it normalizes: amp_tf moved it from the result of a convolution to its filter",
    Rule.BEYOND_RANGE: "it uses a constant that 16 bit would make infinite, zero or one, by {cause}",
    Rule.SUMS: "it adds up many values, and its 16-bit kernel would round after each",
    Rule.AFTER_PRODUCTS: "no product uses what it computes: its value goes to a variable or to the caller",
    Rule.WHOLE_NUMBERS: "it computes what becomes whole numbers, a phase or a place, by {cause}",
    Rule.COMPARED: "it is compared for equality, in float32, with the values that it was selected from",
    Rule.RUNNING_SUM: "it is a part of a running sum, from which 16 bit would lose small terms",
    Rule.LEAVES_RANGE: "it is a square or a quotient, which leaves float16's range for ordinary values",
    Rule.INACCURATE: "its 16-bit kernel loses small results",
    Rule.JOINED: "it joins float32 data to what a product gave, at the size of the data",
    Rule.PICKED: "it picks a part of a larger float32 tensor, and what it picks is cast instead",
    Rule.NEEDED: "it is or is used by a difference, a root or a logarithm, which would show its rounding, by {cause}",
    Rule.CARRIED: "it passes a float32 value through unchanged, also to nodes in float32",
}


@dataclasses.dataclass(frozen=True)
class Balance:
    """What a set of connected nodes was estimated to take, in ns.

    Attributes:
        in_f16: in 16 bit, with the casts that this needs at the border of the set.
        in_float32: in float32, with the casts that this needs.
    """

    in_f16: float
    in_float32: float

    def __str__(self) -> str:
        return f"{self.in_f16 / 1e3:.1f} µs with its casts, {self.in_float32 / 1e3:.1f} µs in float32"


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why a node has its precision.

    Attributes:
        rule: the rule that decided.
        cause: the name of the node that brought it about, empty where the rule needs none.
        detail: more words, empty for none.
        balance: the two figures that :attr:`Rule.DOES_NOT_PAY` weighed, where it weighed some.
    """

    rule: Rule
    cause: str = ""
    detail: str = ""
    balance: Balance | None = None

    def __str__(self) -> str:
        words = self.rule.words if self.cause else self.rule.words.replace(", by {cause}", "")
        words = words.replace("{cause}", repr(self.cause))
        return f"{words} ({self.detail})" if self.detail else words
