"""The modes that are compared, and the ways in which a Keras user runs a model."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

from benchmarks.step_time import zentf

_SWITCH = {"TF_ENABLE_AUTO_MIXED_PRECISION": "1"}
#: The modes that are measured where nothing else is asked for.
COMPARED = ("float32", "policy", "tf_pass", "amp_tf")


@dataclasses.dataclass(frozen=True)
class Mode:
    """One way to get mixed precision, or none.

    Attributes:
        name: what tables call it.
        title: what people call it.
        variables: what it sets in the environment.
        policy: the Keras policy.
        graph_option: a switch of ``tf.config.optimizer.set_experimental_options``.
        reaches_xla: whether it changes anything in a function that XLA compiles.
        reaches_training: whether it is meant for training, too.
        python: the Python that runs it.
        made_by: the module that makes the environment of that Python.
        checkout: whose amp_tf is at work, its C part compiled; ``None`` for this one.
    """

    name: str
    title: str
    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    policy: str = "float32"
    graph_option: str | None = None
    reaches_xla: bool = True
    reaches_training: bool = True
    python: Path = Path(sys.executable)
    made_by: str = ""
    checkout: Path | None = None

    @property
    def is_ours(self) -> bool:
        """True if amp_tf is at work."""
        return _SWITCH.items() <= self.variables.items()

    def reaches(self, way: Way) -> bool:
        """Returns True if it changes anything in one way to run a model."""
        if way.jit and not self.reaches_xla:
            return False
        return self.reaches_training or not way.trains


class _Modes(dict[str, "Mode"]):
    """Modes by name; a name with a path behind ``@`` is that mode with the amp_tf of another
    checkout.
    """

    def __missing__(self, name: str) -> Mode:
        mode, separator, path = name.partition("@")
        if not separator or not self[mode].is_ours:
            raise KeyError(name)
        title = f"{self[mode].title} of {path}"
        return dataclasses.replace(self[mode], name=name, title=title, checkout=Path(path))


def modes(precision: str) -> dict[str, Mode]:
    """The modes for one 16-bit type, ``"bfloat16"`` or ``"float16"``; float32 comes first.

    ``amp_tf@PATH`` is amp_tf as it is in another checkout.
    """
    forced = {**_SWITCH, "AMP_TF_PRECISION": precision}
    in_float16 = {**_SWITCH, "AMP_TF_PRECISION": "float16"}
    in_bfloat16 = {**_SWITCH, "AMP_TF_PRECISION": "bfloat16"}
    option = "auto_mixed_precision"
    if precision == "bfloat16":
        option = "auto_mixed_precision_onednn_bfloat16"
    rows = (
        Mode("float32", "float32"),
        Mode("policy", f"Keras mixed_{precision}", policy=f"mixed_{precision}"),
        Mode("tf_pass", "TensorFlow's pass", graph_option=option, reaches_xla=False),
        Mode("amp_tf", "amp_tf", variables=_SWITCH),
        Mode("memory", "amp_tf for memory", variables={**_SWITCH, "AMP_TF_FOR": "memory"}),
        Mode("all listed", f"amp_tf, AMP_TF_PRECISION={precision}", variables=forced),
        Mode("amp_float16", "amp_tf in float16", variables=in_float16),
        Mode("amp_bfloat16", "amp_tf in bfloat16", variables=in_bfloat16),
        Mode(
            "zentf",
            "AMD's zentf",
            variables=zentf.VARIABLES,
            reaches_xla=False,
            reaches_training=False,
            python=zentf.PYTHON,
            made_by=zentf.__name__,
        ),
    )
    return _Modes({row.name: row for row in rows})


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to run a model.

    Attributes:
        name: what the command line and tables call it.
        trains: whether it trains.
        jit: whether XLA compiles it.
        through_keras: whether Keras' fit or predict runs it, or a tf.function of the user's.
    """

    name: str
    trains: bool
    jit: bool = False
    through_keras: bool = True


_WAYS = (
    Way("fit", trains=True),
    Way("predict", trains=False),
    Way("loop", trains=True, through_keras=False),
    Way("fit_jit", trains=True, jit=True),
    Way("predict_jit", trains=False, jit=True),
)
WAYS = {way.name: way for way in _WAYS}


def environment(mode: Mode) -> dict[str, str]:
    """This process' environment with the variables of one mode and of no other."""
    of_precision = ("TF_ENABLE_AUTO_MIXED_PRECISION", "TF_AUTO_MIXED_PRECISION", "AMP_TF_")
    found = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    for name, value in os.environ.items():
        # A user's own variables, such as AMP_TF_PRECISION, are for the amp_tf mode alone.
        if mode.is_ours or not name.startswith(of_precision):
            found[name] = value
    return found | mode.variables
