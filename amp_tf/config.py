"""Settings: one frozen dataclass, and the table of environment variables that fills it.

Settings are read from ``os.environ`` here alone. Each variable is one row of :data:`ENV_VARS`: its name, the field it
sets, how its text is read, and the sentence that the README's table shows. The names without ``AMP_TF_`` in front are
NGC's and TensorFlow's own and keep their meaning.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from amp_tf.errors import ConfigError

PRECISIONS = ("auto", "float16", "bfloat16")
ALLREDUCE = ("float32", "float16", "bfloat16")
TARGETS = ("auto", "gpu", "cpu")
LEVELS = ("DEFAULT", "UNSAFE_FORCE_ALL", "TREAT_INFER_AS_DENY", "TENSOR_CORES_ONLY")
LIST_NAMES = ("allow", "infer", "deny", "clear")

ENABLE_VAR = "TF_ENABLE_AUTO_MIXED_PRECISION"
GRAPH_REWRITE_VAR = "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE"
LOSS_SCALING_VAR = "TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING"
SWITCH_VARS = (ENABLE_VAR, GRAPH_REWRITE_VAR, LOSS_SCALING_VAR)
DISABLE_VAR = "AMP_TF_DISABLE"
ALLREDUCE_VAR = "AMP_TF_ALLREDUCE"
# Escaped characters and whole character classes, whose brackets and commas mean nothing; then those that do.
_PATTERN_TOKENS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[(){},]", re.DOTALL)
_PREFIX = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"


@dataclasses.dataclass(frozen=True)
class AmpConfig:
    """What to convert, to which precision, and what to leave alone.

    Attributes:
        precision: ``"auto"``, ``"float16"`` or ``"bfloat16"``. ``auto`` is float16 on GPUs of compute capability 7.0
            and newer, bfloat16 on CPUs with avx512_bf16, amx_bf16 or Arm's bf16, and nothing elsewhere.
        level: ``"DEFAULT"``, ``"UNSAFE_FORCE_ALL"``, ``"TREAT_INFER_AS_DENY"`` or ``"TENSOR_CORES_ONLY"``, as in
            TensorFlow's own pass.
        target: ``"auto"``, ``"gpu"`` or ``"cpu"``: the device type of nodes that carry no device.
        allow_add, allow_remove, infer_add, infer_remove, deny_add, deny_remove, clear_add, clear_remove: op names that
            join or leave the list. Moving an op takes a remove and an add.
        keep_float32: regular expressions, searched in node names; a node that matches stays in float32.
        force_f16: regular expressions, searched in node names; a node that matches is converted wherever its op can be.
        allreduce: ``"float32"``, ``"float16"`` or ``"bfloat16"``: the type in which MirroredStrategy and
            MultiWorkerMirroredStrategy sum gradients over replicas.
        ignore_performance: convert on GPUs older than compute capability 7.0 too, and where it does not pay.
        log_path: folder for the graph before and after each rewrite, the op lists and the reasons; ``None`` for none.

    Raises:
        ConfigError: a value is not one of the valid ones, or a regular expression does not compile.
    """

    precision: str = "auto"
    level: str = "DEFAULT"
    target: str = "auto"
    allow_add: tuple[str, ...] = ()
    allow_remove: tuple[str, ...] = ()
    infer_add: tuple[str, ...] = ()
    infer_remove: tuple[str, ...] = ()
    deny_add: tuple[str, ...] = ()
    deny_remove: tuple[str, ...] = ()
    clear_add: tuple[str, ...] = ()
    clear_remove: tuple[str, ...] = ()
    keep_float32: tuple[str, ...] = ()
    force_f16: tuple[str, ...] = ()
    allreduce: str = "float32"
    ignore_performance: bool = False
    log_path: str | None = None

    def __post_init__(self) -> None:
        choices = (("precision", PRECISIONS), ("level", LEVELS), ("target", TARGETS), ("allreduce", ALLREDUCE))
        for field, valid in choices:
            _check_choice(getattr(self, field), valid, where=f"AmpConfig.{field}")
        if not isinstance(self.ignore_performance, bool):
            raise ConfigError(
                f"{self.ignore_performance!r} is not a valid value",
                where="AmpConfig.ignore_performance",
                fix="Valid values: True, False",
            )
        for field in _TUPLE_FIELDS:
            object.__setattr__(self, field, _check_names(getattr(self, field), where=f"AmpConfig.{field}"))
        for field in ("keep_float32", "force_f16"):
            for pattern in getattr(self, field):
                _check_pattern(pattern, where=f"AmpConfig.{field}")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> AmpConfig:
        """The settings that the environment asks for.

        Args:
            environ: a mapping such as ``os.environ``, which is the default.

        Raises:
            ConfigError: a variable has a value that means nothing; the message names the variable, the value and all
                valid values.
        """
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for row in ENV_VARS:
            if row.field is None or not environ.get(row.name, ""):
                continue
            value = row.read(environ[row.name], row.name)
            if isinstance(value, tuple):  # an old and a new name may both be set: both count
                value = (*values.get(row.field, ()), *value)
            values[row.field] = value
        return cls(**values)


@dataclasses.dataclass(frozen=True)
class Switches:
    """Which parts the environment turns on, with NGC's precedence.

    Attributes:
        graph_rewrite: rewrite graphs. ``…_GRAPH_REWRITE`` decides if it is set and not empty, else
            ``TF_ENABLE_AUTO_MIXED_PRECISION``.
        loss_scaling: scale the loss automatically where graphs run in float16. ``…_LOSS_SCALING`` decides if it is set,
            and then only ``1`` (or ``true``) means yes; else ``TF_ENABLE_AUTO_MIXED_PRECISION``.
    """

    graph_rewrite: bool = False
    loss_scaling: bool = False

    @property
    def any(self) -> bool:
        return self.graph_rewrite or self.loss_scaling

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Switches:
        """The switches that the environment sets.

        Raises:
            ConfigError: a variable is neither true nor false; the message names it, its value and the valid ones.
        """
        environ = os.environ if environ is None else environ
        if is_disabled(environ):
            return cls()
        enabled = _switch(environ, ENABLE_VAR)
        rewrite = _switch(environ, GRAPH_REWRITE_VAR) if environ.get(GRAPH_REWRITE_VAR) else enabled
        scaling = _switch(environ, LOSS_SCALING_VAR) if LOSS_SCALING_VAR in environ else enabled
        return cls(graph_rewrite=rewrite, loss_scaling=scaling)


def is_disabled(environ: Mapping[str, str] | None = None) -> bool:
    """Whether ``AMP_TF_DISABLE`` forbids everything, whoever turns it on.

    Raises:
        ConfigError: its value is neither true nor false.
    """
    return _switch(os.environ if environ is None else environ, DISABLE_VAR)


@dataclasses.dataclass(frozen=True)
class EnvVar:
    """One environment variable.

    Attributes:
        name: its name.
        field: the field of :class:`AmpConfig` that it sets, or ``None`` for the switches.
        read: turns the text into the field's value; called with the text and the variable's name.
        values: its valid values, for people.
        meaning: what it does, for people.
    """

    name: str
    field: str | None
    read: Callable[[str, str], Any]
    values: str
    meaning: str


def _check_choice(value: object, valid: tuple[str, ...], *, where: str) -> str:
    if value not in valid:
        raise ConfigError(f"{value!r} is not a valid value", where=where, fix=f"Valid values: {', '.join(valid)}")
    return str(value)


def _check_names(value: object, *, where: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, (tuple, list)) or not all(isinstance(v, str) for v in value):
        raise ConfigError(f"{value!r} is not a tuple of strings", where=where, fix="Write ('A', 'B')")
    return tuple(value)


def _check_pattern(pattern: str, *, where: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"{pattern!r} is not a regular expression ({error})",
            where=where,
            fix="Valid values: regular expressions of Python's re module",
        ) from None
    return pattern


def _read_bool(text: str, name: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("1", "true"):
        return True
    if lowered in ("0", "false", ""):
        return False
    raise ConfigError(f"{text!r} is not a valid value", where=name, fix="Valid values: 1, true, 0, false")


def _read_choice(valid: tuple[str, ...], normalise: Callable[[str], str]) -> Callable[[str, str], str]:
    def read(text: str, name: str) -> str:
        normalised = normalise(text.strip())
        return normalised if normalised in valid else _check_choice(text, valid, where=name)

    return read


def _read_names(text: str, name: str) -> tuple[str, ...]:
    return tuple(item for item in (part.strip() for part in text.split(",")) if item)


def _read_patterns(text: str, name: str) -> tuple[str, ...]:
    """Splits at commas that are not inside brackets, so that ``conv_[0-9]{1,2}`` is one pattern."""
    items, depth, start = [], 0, 0
    for token in _PATTERN_TOKENS.finditer(text):
        if token[0] in "({":
            depth += 1
        elif token[0] in ")}":
            depth = max(depth - 1, 0)
        elif token[0] == "," and not depth:
            items.append(text[start : token.start()])
            start = token.end()
    items.append(text[start:])
    return tuple(_check_pattern(item.strip(), where=name) for item in items if item.strip())


def _read_text(text: str, name: str) -> str:
    return text


def _switch(environ: Mapping[str, str], name: str) -> bool:
    return _read_bool(environ.get(name, ""), name)


def _list_rows() -> tuple[EnvVar, ...]:
    old_names = {"allow": "WHITELIST", "infer": "GRAYLIST", "deny": "BLACKLIST"}
    rows = []
    for action, verb in (("add", "join"), ("remove", "leave")):
        for list_name in LIST_NAMES:
            for env_name in filter(None, (f"{list_name.upper()}LIST", old_names.get(list_name))):
                rows.append(
                    EnvVar(
                        f"{_PREFIX}{env_name}_{action.upper()}",
                        f"{list_name}_{action}",
                        _read_names,
                        "op names, comma-separated",
                        f"ops that {verb} the {list_name} list"
                        + (" (old name)" if env_name in old_names.values() else ""),
                    )
                )
    return tuple(rows)


_TUPLE_FIELDS = tuple(field.name for field in dataclasses.fields(AmpConfig) if str(field.type).startswith("tuple"))

ENV_VARS: tuple[EnvVar, ...] = (
    EnvVar(ENABLE_VAR, None, _read_bool, "1, 0", "turns everything on: graph rewrite and loss scaling"),
    EnvVar(GRAPH_REWRITE_VAR, None, _read_bool, "1, 0", "the graph rewrite alone; wins over the variable above"),
    EnvVar(LOSS_SCALING_VAR, None, _read_bool, "1, 0", "automatic loss scaling alone; wins over the first variable"),
    EnvVar(DISABLE_VAR, None, _read_bool, "1, 0", "1 turns everything off, whatever the program says"),
    EnvVar(
        "AMP_TF_PRECISION",
        "precision",
        _read_choice(PRECISIONS, str.lower),
        ", ".join(PRECISIONS),
        "the 16-bit type; auto: float16 on GPUs (compute capability 7.0+), bfloat16 on CPUs that have it in hardware, "
        "else nothing is converted",
    ),
    EnvVar(
        "AMP_TF_KEEP_FLOAT32",
        "keep_float32",
        _read_patterns,
        "regular expressions, comma-separated",
        "nodes whose name matches stay in float32",
    ),
    EnvVar(
        "AMP_TF_FORCE_F16",
        "force_f16",
        _read_patterns,
        "regular expressions, comma-separated",
        "nodes whose name matches are converted wherever their op can be",
    ),
    EnvVar(
        ALLREDUCE_VAR,
        "allreduce",
        _read_choice(ALLREDUCE, str.lower),
        ", ".join(ALLREDUCE),
        "the type in which gradients are summed over replicas (MirroredStrategy, MultiWorkerMirroredStrategy)",
    ),
    EnvVar(
        f"{_PREFIX}LEVEL",
        "level",
        _read_choice(LEVELS, str.upper),
        ", ".join(LEVELS),
        "how much: the usual; all that can be; less (the infer list is denied); on GPUs the allow list alone",
    ),
    *_list_rows(),
    EnvVar(
        f"{_PREFIX}IGNORE_PERFORMANCE",
        "ignore_performance",
        _read_bool,
        "1, 0",
        "convert also on devices where 16 bit is not fast, and what does not gain",
    ),
    EnvVar(
        f"{_PREFIX}LOG_PATH",
        "log_path",
        _read_text,
        "a folder",
        "where to write each graph before and after, the op lists, and the reason for every node",
    ),
)
