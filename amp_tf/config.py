"""Settings: one frozen dataclass, and the table of environment variables that fills it.

Only this module reads settings from ``os.environ``. Each variable is one row of :data:`ENV_VARS`:
its name, the field that it sets, and the sentence in the table of docs/variables.md. :data:`KINDS`
has the valid values of each field. Names without the prefix ``AMP_TF_`` are NGC's and TensorFlow's
own and keep their meaning.

Two other modules look at the environment: ``_amp_tf_start``, too early for this module, and
``cli/run``, which builds the environment of a child. ``AMP_TF_DISABLE`` wins over
``amp_tf.enable()``, so that any program can be run without amp_tf from outside.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from amp_tf.errors import ConfigError, OpListError
from amp_tf.values import (
    NAMES,
    PATTERNS,
    YES_OR_NO,
    Kind,
    choice,
    dtype,
    path,
    read_bool,
    read_files,
)

PrecisionName = Literal["auto", "float16", "bfloat16"]
AllReduceName = Literal["float32", "float16", "bfloat16"]
TargetName = Literal["auto", "gpu", "cpu"]
GoalName = Literal["speed", "memory"]
LevelName = Literal["DEFAULT", "UNSAFE_FORCE_ALL", "TREAT_INFER_AS_DENY", "TENSOR_CORES_ONLY"]
ListName = Literal["allow", "infer", "deny", "clear"]

PRECISIONS: tuple[str, ...] = get_args(PrecisionName)
ALLREDUCE: tuple[str, ...] = get_args(AllReduceName)
TARGETS: tuple[str, ...] = get_args(TargetName)
GOALS: tuple[str, ...] = get_args(GoalName)
LEVELS: tuple[str, ...] = get_args(LevelName)
LIST_NAMES: tuple[str, ...] = get_args(ListName)
WEIGHTS = ("float32", "f16")  #: types in which a converted SavedModel may store variables

ENABLE_VAR = "TF_ENABLE_AUTO_MIXED_PRECISION"
GRAPH_REWRITE_VAR = "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE"
LOSS_SCALING_VAR = "TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING"
SWITCH_VARS = (ENABLE_VAR, GRAPH_REWRITE_VAR, LOSS_SCALING_VAR)
DISABLE_VAR = "AMP_TF_DISABLE"
ALLREDUCE_VAR = "AMP_TF_ALLREDUCE"
_PREFIX = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"
#: Variables of the images and of setup.py.
_OF_THE_BUILD = (
    "AMP_TF_BANNER",
    "AMP_TF_IMAGE",
    "AMP_TF_WHEEL_ARCH",
    "AMP_TF_WITHOUT_PTH",
)


@dataclasses.dataclass(frozen=True)
class AmpConfig:
    """Holds the settings of a rewrite.

    They are the precision, the op lists, and the nodes to keep and to force.

    Attributes:
        precision: ``"auto"``, ``"float16"`` (``"fp16"``) or ``"bfloat16"`` (``"bf16"``), or a dtype
            such as ``tf.bfloat16``. ``auto`` is float16 on GPUs of compute capability 7.0 and
            newer, bfloat16 on CPUs with avx512_bf16, amx_bf16 or Arm's bf16, and nothing elsewhere.
        level: ``"DEFAULT"``, ``"UNSAFE_FORCE_ALL"``, ``"TREAT_INFER_AS_DENY"`` or
            ``"TENSOR_CORES_ONLY"``, as in TensorFlow's own pass.
        target: ``"auto"``, ``"gpu"`` or ``"cpu"``: the device type of nodes that carry no device.
        goal: ``"speed"`` or ``"memory"``: the goal of a rewrite. ``memory`` is for the largest
            batch: ``auto`` weighs the tensors that are live at the peak, and nothing is computed
            long before it is used.
        allow_add, allow_remove: op names that join or leave the allow list. An op that joins a list
            leaves the one that it was on.
        infer_add, infer_remove: the same for the infer list.
        deny_add, deny_remove: the same for the deny list.
        clear_add, clear_remove: the same for the clear list.
        keep_float32: patterns of nodes that stay in float32. A pattern is a regular expression,
            searched in node names, or ``layer:`` and the path of a layer (Keras' ``layer.path``),
            such as ``"layer:encoder/block_3/attention"``, for all nodes of the layer and its
            gradient; each name of the path may be a regular expression. ``node:`` and a name is for
            that node alone.
        force_f16: patterns of nodes that are converted wherever their op can be.
        allreduce: ``"float32"``, ``"float16"`` or ``"bfloat16"``: the type in which
            MirroredStrategy and MultiWorkerMirroredStrategy sum gradients over replicas.
        ignore_performance: whether to convert on GPUs older than compute capability 7.0, and nodes
            that are not faster.
        log_path: folder for the graph before and after each rewrite, the op lists and the reasons;
            ``None`` for none.
        report_path: folder for a report of the process, one JSON file written when it ends;
            ``None`` for none.

    Lists, sets and other iterables of names are kept as tuples, dtypes and paths as strings.

    Raises:
        ConfigError: a value is not one of the valid ones, or a regular expression does not compile.
        OpListError: one op is to join two lists.
    """

    precision: PrecisionName = "auto"
    level: LevelName = "DEFAULT"
    target: TargetName = "auto"
    goal: GoalName = "speed"
    allow_add: Sequence[str] = ()
    allow_remove: Sequence[str] = ()
    infer_add: Sequence[str] = ()
    infer_remove: Sequence[str] = ()
    deny_add: Sequence[str] = ()
    deny_remove: Sequence[str] = ()
    clear_add: Sequence[str] = ()
    clear_remove: Sequence[str] = ()
    keep_float32: Sequence[str] = ()
    force_f16: Sequence[str] = ()
    allreduce: AllReduceName = "float32"
    ignore_performance: bool = False
    log_path: str | None = None
    report_path: str | None = None

    def __post_init__(self) -> None:
        for field, kind in KINDS.items():
            value = kind.check(getattr(self, field), where=f"AmpConfig.{field}")
            object.__setattr__(self, field, value)
        joins: dict[str, list[str]] = {}
        for name in LIST_NAMES:
            for op in sorted({*getattr(self, f"{name}_add")} - {*getattr(self, f"{name}_remove")}):
                joins.setdefault(op, []).append(name)
        for op, names in joins.items():
            if len(names) > 1:
                raise OpListError(
                    f"op {op!r} is to join the {' and the '.join(names)} list",
                    where=" and ".join(setting_name(f"{name}_add") for name in names),
                    fix=f"Name {op!r} in one of them alone: it then leaves the list that it is on",
                )

    @classmethod
    def from_env(
        cls, environ: Mapping[str, str] | None = None, *, without: Iterable[str] = ()
    ) -> AmpConfig:
        """Reads the settings from the environment.

        Args:
            environ: the variables; by default those of the process.
            without: fields that are left out.

        Raises:
            ConfigError: variables have invalid values; it names each with all valid values.
        """
        left_out = {None, *without}
        values: dict[str, Any] = {}
        for row, value in _read(environ, (row for row in ENV_VARS if row.field not in left_out)):
            field = str(row.field)
            if isinstance(value, tuple):  # an old and a new name may both be set, and both count
                value = (*values.get(field, ()), *value)
            values[field] = value
        return cls(**values)


def sources(config: AmpConfig, program: str = "amp_tf.enable") -> list[dict[str, Any]]:
    """Lists each setting in force, with its source: default, a variable, or the program itself."""
    named: dict[str, list[str]] = {}
    for row in ENV_VARS:
        if row.field and os.environ.get(row.name):
            named.setdefault(row.field, []).append(row.name)
    try:
        asked = AmpConfig.from_env()
    except ConfigError:  # it was valid when the program turned amp_tf on
        asked = AmpConfig()
    found = []
    for field in KINDS:
        value = getattr(config, field)
        source = program
        if field in named and value == getattr(asked, field):
            source = ", ".join(named[field])
        elif value == getattr(AmpConfig, field):
            source = "default"
        if isinstance(value, tuple):
            value = list(value)
        found.append({"field": field, "value": value, "from": source})
    return found


@dataclasses.dataclass(frozen=True)
class Switches:
    """The parts that the environment turns on, with NGC's precedence.

    Attributes:
        graph_rewrite: whether graphs are rewritten. ``…_GRAPH_REWRITE`` decides if it is set and
            not empty, else ``TF_ENABLE_AUTO_MIXED_PRECISION``.
        loss_scaling: whether the loss is scaled automatically where graphs run in float16.
            ``…_LOSS_SCALING`` decides if it is set, and then only ``1`` (or ``true``) means yes;
            else ``TF_ENABLE_AUTO_MIXED_PRECISION``.
    """

    graph_rewrite: bool = False
    loss_scaling: bool = False

    @property
    def any(self) -> bool:
        """True if something is on."""
        return self.graph_rewrite or self.loss_scaling

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Switches:
        """Reads the switches from the environment.

        Raises:
            ConfigError: a variable is neither true nor false.
        """
        environ = _variables(environ)
        if is_disabled(environ):
            return cls()
        enabled = _switch(environ, ENABLE_VAR)
        graph_rewrite = enabled
        if environ.get(GRAPH_REWRITE_VAR):
            graph_rewrite = _switch(environ, GRAPH_REWRITE_VAR)
        loss_scaling = enabled
        if LOSS_SCALING_VAR in environ:
            loss_scaling = _switch(environ, LOSS_SCALING_VAR)
        return cls(graph_rewrite, loss_scaling)


def deciding_switch() -> tuple[str, str]:
    """The switch that turned the graph rewrite on or off, and its value; empty if none is set."""
    name = ENABLE_VAR
    if os.environ.get(GRAPH_REWRITE_VAR):
        name = GRAPH_REWRITE_VAR
    return name, os.environ.get(name, "")


def check_environment() -> None:
    """Checks the values of all variables.

    Raises:
        ConfigError: some are invalid; it names each with all valid values.
    """
    _read(None, ENV_VARS)


def find_unknown_variables(environ: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """Finds variables that look like amp_tf's and are not.

    Returns:
        The name of each, with the closest valid name or an empty string.
    """
    environ = _variables(environ)
    known = {*_OF_THE_BUILD, *(row.name for row in ENV_VARS)}
    found = []
    for name in sorted(set(environ) - known):
        close = _closest(name)
        if close or name.startswith("AMP_TF_"):
            found.append((name, close))
    return found


@functools.lru_cache(maxsize=1024)  # of a whole environment, at each enable
def _closest(name: str) -> str:
    """The variable that a name probably means; empty where none is close."""
    cutoff = 0.95  # other prefixes are TensorFlow's own
    if name.startswith("AMP_TF_"):
        cutoff = 0.8
    names = [row.name for row in ENV_VARS]
    return "".join(difflib.get_close_matches(name, names, n=1, cutoff=cutoff))


def is_disabled(environ: Mapping[str, str] | None = None) -> bool:
    """Returns True if ``AMP_TF_DISABLE`` turns amp_tf off, even for a program that turns it on.

    Raises:
        ConfigError: it is neither true nor false.
    """
    return _switch(_variables(environ), DISABLE_VAR)


def onednn_setting() -> str:
    """The value of the variable that turns TensorFlow's oneDNN on or off; empty if not set."""
    return os.environ.get("TF_ENABLE_ONEDNN_OPTS", "")


def cache_folder() -> Path:
    """Returns the folder of amp_tf's cache files.

    Raises:
        RuntimeError: the user has no home folder.
    """
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder, "amp_tf")


@dataclasses.dataclass(frozen=True)
class EnvVar:
    """One environment variable.

    Attributes:
        name: its name.
        field: the field of :class:`AmpConfig` that it sets; ``None`` for the switches.
        meaning: its effect, for people.
    """

    name: str
    field: str | None
    meaning: str

    @property
    def kind(self) -> Kind:
        """Its valid values."""
        return KINDS[self.field] if self.field else YES_OR_NO


def check_config(
    config: object,
    *,
    where: str,
    fix: str = 'Write for instance amp_tf.AmpConfig(precision="bfloat16")',
) -> AmpConfig:
    """Returns what a user passed to ``where``, or raises a ConfigError if it is no AmpConfig."""
    if isinstance(config, AmpConfig):
        return config
    raise ConfigError(f"expected an AmpConfig, got {config!r}", where=where, fix=fix)


def with_settings(config: AmpConfig, settings: Mapping[str, Any], *, where: str) -> AmpConfig:
    """A configuration with other values for some fields, which may name files of patterns.

    Raises:
        ConfigError: there is no such field or value, or a file cannot be read.
    """
    values = dict(settings)
    for name, value in settings.items():
        if name not in KINDS:
            fix = f"The settings are: {', '.join(KINDS)}"
            for close in difflib.get_close_matches(name, KINDS, n=1):
                fix = f"Did you mean {close!r}? {fix}"
            raise ConfigError(f"there is no setting {name!r}", where=where, fix=fix)
        if KINDS[name] is PATTERNS:
            values[name] = read_files(value, where=f"{where}({name})")
    if not values:
        return config  # the same object
    return dataclasses.replace(config, **values)


def setting_name(field: str) -> str:
    """A field under its name in Python and in the environment."""
    return f"AmpConfig.{field} ({variable_of(field)})"


def variable_of(field: str) -> str:
    """The environment variable of a field."""
    return next(row.name for row in ENV_VARS if row.field == field)


def variables_of(config: AmpConfig) -> dict[str, str]:
    """The environment variables that mean a configuration, without those of default values."""
    found = {}
    for row in reversed(ENV_VARS):
        if row.field is None or row.name != variable_of(row.field):  # a switch, or an old name
            continue
        value = getattr(config, row.field)
        if value == getattr(AmpConfig, row.field):
            continue
        if isinstance(value, bool):
            value = int(value)
        if isinstance(value, tuple):
            value = ",".join(value)
        found[row.name] = str(value)
    return found


def _read(environ: Mapping[str, str] | None, rows: Iterable[EnvVar]) -> list[tuple[EnvVar, Any]]:
    """Reads the variables that are set; one error names all that are wrong."""
    environ = _variables(environ)
    found = []
    wrong = []
    for row in rows:
        text = environ.get(row.name)
        if not text:
            continue
        try:
            found.append((row, row.kind.read(text, row.name)))
        except ConfigError as error:
            wrong.append(error)
    if len(wrong) > 1:
        raise ConfigError(" ".join(map(str, wrong)).rstrip("."))
    if wrong:
        raise wrong[0]
    return found


def _variables(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    """The given variables, or those of the process."""
    if environ is None:
        return os.environ
    return environ


def _switch(environ: Mapping[str, str], name: str) -> bool:
    return read_bool(environ.get(name, ""), name)


def _list_rows() -> Iterator[EnvVar]:
    old_names = {"allow": "WHITELIST", "infer": "GRAYLIST", "deny": "BLACKLIST"}
    for action, verb in (("add", "join"), ("remove", "leave")):
        for name in LIST_NAMES:
            field = f"{name}_{action}"
            meaning = f"ops that {verb} the {name} list"
            ending = f"_{action.upper()}"
            yield EnvVar(f"{_PREFIX}{name.upper()}LIST{ending}", field, meaning)
            if name in old_names:
                old_name = f"{_PREFIX}{old_names[name]}{ending}"
                yield EnvVar(old_name, field, f"{meaning} (old name)")


#: The valid values of each field of :class:`AmpConfig`, in their order.
KINDS: Mapping[str, Kind] = {
    "precision": dtype(PRECISIONS),
    "level": choice(LEVELS, str.upper),
    "target": choice(TARGETS),
    "goal": choice(GOALS, str.lower),
    **{f"{name}_{action}": NAMES for name in LIST_NAMES for action in ("add", "remove")},
    **dict.fromkeys(("keep_float32", "force_f16"), PATTERNS),
    "allreduce": dtype(ALLREDUCE),
    "ignore_performance": YES_OR_NO,
    **dict.fromkeys(("log_path", "report_path"), path("a folder")),
}

ENV_VARS: tuple[EnvVar, ...] = (
    EnvVar(ENABLE_VAR, None, "turns everything on: graph rewrite and loss scaling"),
    EnvVar(GRAPH_REWRITE_VAR, None, "the graph rewrite alone; wins over the variable above"),
    EnvVar(LOSS_SCALING_VAR, None, "automatic loss scaling alone; wins over the first variable"),
    EnvVar(DISABLE_VAR, None, "1 turns everything off, whatever the program says"),
    EnvVar(
        "AMP_TF_PRECISION",
        "precision",
        "the 16-bit type; auto: float16 on GPUs (compute capability 7.0+), bfloat16 on CPUs that "
        "have it in hardware, else nothing is converted",
    ),
    EnvVar(
        "AMP_TF_FOR",
        "goal",
        "the goal of rewriting; memory: the largest batch, whatever it costs in time",
    ),
    EnvVar("AMP_TF_KEEP_FLOAT32", "keep_float32", "these nodes stay in float32"),
    EnvVar("AMP_TF_FORCE_F16", "force_f16", "these nodes are converted wherever their op can be"),
    EnvVar(
        ALLREDUCE_VAR,
        "allreduce",
        "the type in which gradients are summed over replicas (MirroredStrategy, "
        "MultiWorkerMirroredStrategy)",
    ),
    EnvVar(
        f"{_PREFIX}LEVEL",
        "level",
        "how much to convert: the default; all that can be; less (infer list denied); on GPUs "
        "only the allow list",
    ),
    *_list_rows(),
    EnvVar(
        f"{_PREFIX}IGNORE_PERFORMANCE",
        "ignore_performance",
        "convert also on devices where 16 bit is not fast, and nodes that would not become faster",
    ),
    EnvVar(
        f"{_PREFIX}LOG_PATH",
        "log_path",
        "where to write each graph before and after, the op lists, and the reason for every node",
    ),
    EnvVar(
        "AMP_TF_REPORT",
        "report_path",
        "where each process writes its report as it ends, a JSON file; amp-tf report makes a page "
        "of it",
    ),
)
