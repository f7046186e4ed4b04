"""Named limits: ratios above the yardstick's that stay, each with its figure and the reason."""

from __future__ import annotations

import dataclasses
import math
import re

ALL = ("bfloat16", "float16", "auto")
FLOAT16 = ("float16",)


@dataclasses.dataclass(frozen=True)
class Limit:
    """A row of the table.

    Attributes:
        programs: a regular expression that must match the program's whole name.
        modes: the precisions concerned.
        worst: the largest ratio that is expected; infinite where values leave the range of the
            type.
        why: for people.
        cases: a regular expression that must match the case's whole name.
        tensors: one that must match the tensor's whole name.
    """

    programs: str
    modes: tuple[str, ...]
    worst: float
    why: str
    cases: str = ".*"
    tensors: str = ".*"

    def covers(self, row):
        if row.problem or row.mode not in self.modes or not row.ratio <= self.worst:
            return False
        is_program = re.fullmatch(self.programs, row.program) is not None
        is_case = re.fullmatch(self.cases, row.case) is not None
        is_tensor = re.fullmatch(self.tensors, row.tensor) is not None
        return is_program and is_case and is_tensor


_FUNCTIONS = (
    r"(tf\.\w+|keras\.(losses|metrics))/.*|keras\.layers/(STFTSpectrogram|MelSpectrogram|Lambda)"
)
_SATURATED = (
    r"tf\.(nn|math)/(sigmoid|tanh|log_sigmoid|silu|swish|gelu|asin|atanh|acos)"
    r"|loops/.*|keras\.losses/.*"
    r"|keras\.layers/(Bidirectional|LSTM|GRU|RNN|SimpleRNN|ConvLSTM.*)"
)
LIMITS = (
    Limit(
        _FUNCTIONS,
        FLOAT16,
        math.inf,
        "inputs times 1e-6 or 1e6 leave float16's range (6e-8 to 65,504) in ordinary arithmetic; "
        "bfloat16 has it",
        cases="1e-6|1e-3|1e3|1e6",
    ),
    Limit(
        r"tf\.(math|nn|linalg)/(l2_normalize|normalize|multiply|zeta|log_poisson_loss|det|slogdet)"
        r"|keras\.layers/(STFTSpectrogram|MelSpectrogram)",
        FLOAT16,
        math.inf,
        "squares, quotients and determinants leave float16's range for inputs near zero or of "
        "mean 50, too",
    ),
    Limit(
        _SATURATED,
        ALL,
        300.0,
        "the gradient of a saturated sigmoid or tanh is 1 - y, and y is rounded to 16 bit, once",
        cases="mean 50|1e3|1e6|half masked|1",
        tensors="gradient.*",
    ),
    Limit(
        r"tf\.math/(maximum|minimum)|practice/lovasz hinge",
        ALL,
        50.0,
        "which of two nearly equal values is the larger decides where the gradient goes",
        tensors="gradient.*",
    ),
    Limit(
        r"tf\.nn/max_pool3d|keras\.layers/\w*Max\w*3D",
        ("bfloat16", "auto"),
        5000.0,
        "TensorFlow's bfloat16 kernel of MaxPool3DGrad takes values very near the maximum for the "
        "maximum, too",
        cases="1|1e-6|1e-3|zeros|equal rows|mean 50",
    ),
    Limit(
        "keras.layers/GroupNormalization",
        ALL,
        7.0,
        "with one channel left in each group, the size of its weight does not matter: the gradient "
        "is what epsilon leaves, .4 % of its terms, which are rounded, once each (to round their "
        "sum, once, puts it off by 3.8 %; in float32 they cost 2.6 % of a block's speed)",
        cases="half masked",
    ),
    Limit(
        "keras.layers/Rescaling",
        ("bfloat16", "auto"),
        20.0,
        "1 / 127.5 is 2^-7 in bfloat16, 0.4 % less: a constant factor is rounded, once, which "
        "shifts all values alike",
        tensors="loss",
    ),
    Limit(
        r"keras\.layers/(ContrastLimitedAdaptiveHistogramEqualization|MelSpectrogram"
        r"|RMSNormalization|Spectral.*)",
        ("bfloat16", "auto"),
        15.0,
        "the last product is float32, in the ideal program, too; what the layer gives is rounded, "
        "once, by at most 1 %",
        cases="1|equal rows|half masked|mean 50",
        tensors="loss",
    ),
    Limit(
        "keras.optimizers/Lamb",
        ("bfloat16", "auto"),
        7.0,
        "its first steps are as long as the weights are, so a rounding in one is seen at full "
        "size in the next",
        tensors="(move|state).*",
    ),
    Limit(
        "keras.optimizers/Lion",
        ("bfloat16", "auto"),
        30.0,
        "it moves each number by the sign of its momentum, and one in a hundred is near enough to "
        "zero to flip",
        tensors="move.*",
    ),
    Limit(
        r"keras\.layers/(Alpha|Spatial)?Dropout\w*",
        ("bfloat16", "auto"),
        8.0,
        "a constant factor is rounded, once, which shifts all values alike; a square shifts twice "
        "as far",
        tensors="loss",
    ),
    Limit(
        r"tf\.linalg/eigh_tridiagonal",
        ALL,
        300.0,
        "1 + x is rounded, once, and the function, on no list, tells 1 + x from 1",
        cases="1e-6|1e-3|zeros",
    ),
    Limit(
        r"tf\.nn/(normalize_moments|moments|batch_normalization)|tf\.(math|nn)/softmax"
        r"|keras\.layers/((Batch|Group)Normalization|Softmax|(MultiHead|GroupQuery)?Attention)",
        ALL,
        500.0,
        "values far from zero beside their spread are rounded, once, before their mean is taken "
        "off",
        cases="mean 50|equal rows|1e3",
    ),
    Limit(
        "keras.layers/BatchNormalization",
        FLOAT16,
        math.inf,
        "nothing is left of equal rows but one rounding, before their mean is taken off",
        cases="equal rows",
        tensors="output|gradient of after/kernel",
    ),
    Limit(
        "rules/batch of equal rows",
        ("bfloat16", "auto"),
        math.inf,
        "that rounding is multiplied by the root of 1 / epsilon, which is 1e5",
    ),
    Limit(
        "moments/.*",
        ALL,
        300.0,
        "the gradients of a second (third) moment and of a mean, each some ten (hundred) times as "
        "large as their sum, are rounded, once each",
        tensors="gradient.*",
    ),
    Limit(
        "rules/waiting in queues",
        ALL,
        300.0,
        "1 - y of a sigmoid near one is what is left of y, which is rounded, once",
    ),
    Limit(
        "practice/(gumbel choice|switch routing)",
        ALL,
        30.0,
        "the weights of a softmax are rounded, once each, and no longer add up to one, as under "
        "Keras' policy",
    ),
    Limit(
        "softmaxes/attention with a key bias",
        ALL,
        60.0,
        "a bias that is added right before a softmax is rounded with the sum, once, as in layers "
        "whose activation is one",
    ),
    Limit(
        "decompositions/levenberg marquardt",
        ALL,
        10.0,
        "the residuals of a fit with a constant term, some 10 each, add up to 2 in the gradient of "
        "a bias, and are rounded, once each",
        tensors="gradient of net/bias",
    ),
    Limit(
        "loops/gated",
        ALL,
        100.0,
        "the gradient of a gate near one is a sum of two terms of either sign, each of which is "
        "rounded, once",
        tensors="gradient.*",
    ),
    Limit(
        "loops/gated",
        ("float16",),
        math.inf,
        "a gradient of some 1e5 leaves float16's range, for loss scaling to see",
        cases="1e3",
        tensors="gradient.*",
    ),
    Limit(
        "keras.layers/(Layer|Group)Normalization",
        FLOAT16,
        8.0,
        "gamma's gradient is a sum of two factors that are rounded, once each",
        cases="1e-3",
        tensors="gradient.*gamma",
    ),
    Limit(
        "keras.optimizers/Adam.*",
        FLOAT16,
        6.0,
        "in front of a normalization, a gradient is what its terms leave when their mean is taken "
        "off, and they are rounded, once each",
        tensors=r".*sequential.dense.(kernel|bias).*",
    ),
    Limit(
        "keras.optimizers/ScheduleFreeAdamW",
        ("bfloat16", "auto"),
        6.0,
        "a difference of two averages of one weight, of which the gradients were rounded",
        tensors="(state|move).*bias.*",
    ),
    Limit(
        r"tf\.math/cumulative_logsumexp",
        ALL,
        5000.0,
        "the gradient divides by exponentials of values that were rounded, once",
    ),
    Limit(
        r"tf\.math/ndtri",
        ALL,
        2000.0,
        "the quantile of 0.5 + x is that of x, and 0.5 + x is rounded, once",
    ),
    Limit(
        r"tf\.math/(erfinv|mod|scalar_mul|softplus|squared_difference|subtract)"
        r"|practice/state space|moments/sums in place of means",
        ALL,
        9.0,
        "a loss that is off by at most six roundings of one value; those of the ideal program "
        "happen to cancel",
        tensors="loss",
    ),
    Limit(
        "keras.layers/Dot",
        FLOAT16,
        6.0,
        "the gradient of a cosine is a difference of two terms, each of which is rounded twice",
        cases="1e-3",
        tensors="gradient of x",
    ),
    Limit(
        "keras.losses/Circle",
        ("bfloat16", "auto"),
        30.0,
        "it multiplies similarities by 80, and with them the rounding of the product; of equal "
        "rows all are alike",
        cases="equal rows|mean 50",
        tensors="loss",
    ),
    Limit(
        r"keras\.layers/ConvLSTM[12]D",
        FLOAT16,
        250.0,
        "gates that are shut give 5e-10, which is zero in float16",
        cases="mean 50",
    ),
)


def limit_of(row):
    """The first limit that covers a row."""
    return next((limit for limit in LIMITS if limit.covers(row)), None)
