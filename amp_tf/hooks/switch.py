"""Turns amp_tf on and off, from Python and from the environment.

Settings are on a stack. A handle removes its own settings, wherever they are, so blocks nest and
may end in any order. The environment is at the bottom and is read again when it comes to the top;
``disable()`` and ``AMP_TF_DISABLE`` empty the stack. The reason for amp_tf being off is recorded
where it is turned off (``Runtime.off``), for the summary line and ``report()``.

NVIDIA's TensorFlow read ``TF_ENABLE_AUTO_MIXED_PRECISION`` each time it optimized a graph, so most
scripts of that time set it themselves, at the top or where they read an ``--amp`` flag; notebooks
have no other way. A value set before TensorFlow is imported is found in the environment; later
changes are reported by ``_amp_tf_start``, which wraps the methods of ``os.environ`` that change it.
A change by ``os.putenv`` alone is not seen.

:data:`HOOKS` lists the hooks into TensorFlow and Keras: modules with an idempotent
``install(patches)``. It is called after the import of each of its triggers, so it puts patches on
what is there and leaves the rest for the next call. They are restored here, for all hooks; a hook
that has more to undo has an ``uninstall()``, idempotent too.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import importlib
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol

from amp_tf.config import (
    DISABLE_VAR,
    ENV_VARS,
    GRAPH_REWRITE_VAR,
    LOSS_SCALING_VAR,
    SWITCH_VARS,
    AmpConfig,
    Switches,
    check_config,
    check_environment,
    deciding_switch,
    is_disabled,
    with_settings,
)
from amp_tf.errors import ConfigError
from amp_tf.hooks import imports, notices
from amp_tf.hooks import state as process_state
from amp_tf.hooks.state import current


@dataclasses.dataclass(frozen=True)
class Hook:
    """One row of the table. One that no setting asks for is not even imported."""

    part: str  #: the field of :class:`amp_tf.config.Switches` that turns it on
    home: str  #: the module that holds it
    triggers: tuple[str, ...]  #: modules after whose import it is installed
    is_wanted: Callable[[AmpConfig], bool] = lambda config: True  #: whether settings ask for it


_ALL = ("tensorflow", "keras", "tf_keras")
HOOKS: tuple[Hook, ...] = (
    Hook("graph_rewrite", "amp_tf.hooks.plugin", ("tensorflow",)),
    Hook("graph_rewrite", "amp_tf.hooks.xla", ("tensorflow",)),
    Hook("graph_rewrite", "amp_tf.hooks.input_pipelines", _ALL),
    Hook(
        "graph_rewrite",
        "amp_tf.hooks.all_reduce",
        ("tensorflow",),
        lambda config: config.allreduce != "float32",
    ),
    Hook("graph_rewrite", "amp_tf.hooks.workers", ("tensorflow",)),
    Hook("graph_rewrite", "amp_tf.hooks.report_files", ("tensorflow",)),
    Hook(
        "graph_rewrite",
        "amp_tf.hooks.step_times",
        _ALL,
        lambda config: bool(config.report_path or current().on_step),
    ),
    Hook("graph_rewrite", "amp_tf.hooks.scope", ("tensorflow",)),
    Hook("graph_rewrite", "amp_tf.hooks.conflicts", ("keras", "tf_keras")),
    Hook("graph_rewrite", "amp_tf.hooks.layer_paths", _ALL),
    # In bfloat16 nothing is ever scaled.
    Hook(
        "loss_scaling",
        "amp_tf.hooks.loss_scaling",
        _ALL,
        lambda config: config.precision != "bfloat16",
    ),
    Hook(
        "loss_scaling",
        "amp_tf.hooks.loss_scaling_v1",
        ("tensorflow",),
        lambda config: config.precision != "bfloat16",
    ),
)

EVERYTHING = Switches(graph_rewrite=True, loss_scaling=True)
BY_CALL = "amp_tf is off: amp_tf.disable() was called"
BY_HANDLE = "amp_tf is off: the handle of amp_tf.enable() was uninstalled, or its with block ended"
BY_INTERRUPT = "amp_tf is off: turning it on was interrupted"
BY_VARIABLE = f"amp_tf is off: {DISABLE_VAR} is set"
_EXIT_WAIT_MS = 10_000
_NAMES = frozenset(row.name for row in ENV_VARS)


class Handle(contextlib.AbstractContextManager["Handle"]):
    """Takes back the settings that :func:`enable` put in force.

    As a context manager it does so at the end of the block.
    """

    def __init__(
        self, config: AmpConfig, switches: Switches, *, by_environment: bool = False
    ) -> None:
        self.config = config  #: the settings that were turned on
        self._switches = switches
        self._by_environment = by_environment

    def __repr__(self) -> str:
        fields = vars(self.config).items()
        settings = [
            f"{name}={value!r}" for name, value in fields if value != getattr(AmpConfig, name)
        ]
        state = "off"
        if self in current().stack:
            state = "under later settings"
        if _active() is self:
            state = "on"
        return f"<amp_tf.Handle({', '.join(settings)}), {state}>"

    def uninstall(self) -> None:
        """Takes these settings back: those before are in force again, unless later ones are."""
        with current().switching:
            rest = [other for other in current().stack if other is not self]
            if _active() is not self:
                process_state.note(stack=rest)
            elif not rest:
                _turn_off(BY_HANDLE)
            elif rest[-1]._by_environment:  # which may say something else by now
                _follow_environment()
            else:
                _turn_on(rest)

    def __exit__(self, *_: object) -> None:
        self.uninstall()


def _active() -> Handle | None:
    """The handle whose settings are in force.

    The one below it is in force again once it is taken back.
    """
    stack: list[Handle] = current().stack
    if not stack:
        return None
    return stack[-1]


def obey_environment(changed: str | None = None) -> None:
    """Applies the variables of the environment.

    A bad value leads to one message, and amp_tf stays off. The settings of :func:`enable` stay in
    force until ``AMP_TF_DISABLE`` is set. If amp_tf is off, only a change of a switch turns it on,
    or one that corrects the bad value for which it is off.

    Args:
        changed: the variable that the program has just set or deleted, perhaps not one of amp_tf's.
    """
    if changed is not None and changed not in _NAMES:
        return
    with current().switching:
        active = _active()
        is_quiet = active is None and not current().refused
        if is_quiet and changed is not None and changed not in (*SWITCH_VARS, DISABLE_VAR):
            return
        if active is None or active._by_environment or _is_forbidden():
            _follow_environment(is_asked_first=changed is None)
        elif changed in (None, *SWITCH_VARS):
            _put_environment_below()


def _put_environment_below() -> None:
    """Puts the environment under the settings in force, if it asks for amp_tf and is not there."""
    stack = current().stack
    if any(handle._by_environment for handle in stack):
        return
    # It is read again when it comes to the top, and a bad value is reported then.
    with contextlib.suppress(ConfigError):
        asked, _ = _asked_by_environment()
        if asked is not None:
            process_state.note(stack=[asked, *stack])


def _turn_off(reason: str) -> None:
    with current().switching:
        process_state.note(stack=[], refused="", off=reason, switches=Switches())
        imports.forget(_on_import)
        _uninstall_hooks()


def _turn_on(stack: list[Handle]) -> None:
    """Puts the last settings of a stack in force; if that is interrupted, what was before is."""
    before = current().stack
    try:
        _put_in_force(stack)
    except BaseException:
        if before:
            _put_in_force(before)
        else:
            _turn_off(BY_INTERRUPT)
        raise


def _put_in_force(stack: list[Handle]) -> None:
    wanted = stack[-1]._switches
    active = _active()
    if active is not None and active._switches != wanted:
        _uninstall_hooks()
    off = ""
    if not wanted.graph_rewrite:
        name, value = deciding_switch()
        why = f"{name} is {value or 'not set'}"
        off = f"the graph rewrite is off ({why}): only losses are scaled"
    traced = process_state.traced_functions()
    process_state.note(stack=stack, refused="", off=off, traced=traced)
    imports.forget(_on_import)
    _report_at_exit()
    for trigger in _ALL:
        imports.after_import(trigger, _on_import)


def _on_import(trigger: str) -> None:
    with current().switching:
        active = _active()
        if active is not None:
            process_state.note(config=active.config, switches=active._switches)
            install_hooks(trigger)


def _follow_environment(*, is_asked_first: bool = False) -> None:
    now = _active()
    was_asked = is_asked_first or now is not None or bool(current().refused)
    try:
        asked, reason = _asked_by_environment()
    except ConfigError as error:
        # It is reported once while it is the reason for amp_tf being off.
        if str(error) != current().refused:
            notices.warn_of_unknown_variables()
            notices.emit(logging.WARNING, f"stays off, the program runs in float32: {error}")
        where = error.where or "the environment"
        _turn_off(f"amp_tf is off: {where} is not valid, as a warning said")
        process_state.note(refused=str(error))
        _report_at_exit()
        return
    if asked is None and was_asked:
        _turn_off(reason)
        _report_at_exit()
    elif asked is not None and (now is None or vars(asked) != vars(now)):
        notices.warn_of_unknown_variables()
        _turn_on([asked])


def _report_at_exit() -> None:
    if current().exit_pid is None:
        process_state.note(exit_pid=os.getpid())
        atexit.register(_at_exit)


def _at_exit() -> None:
    """Prints the line and writes the report; no Python runs on TensorFlow's threads after that."""
    state = current()
    # A forked child converts too, but its parent prints the line.
    is_child = os.getpid() != state.exit_pid
    reports = sys.modules.get("amp_tf.reporting.reports")
    has_seen = reports is not None and reports.totals().graphs
    is_due = has_seen or state.off not in (None, BY_CALL, BY_HANDLE, BY_VARIABLE)
    plugin = sys.modules.get("amp_tf.hooks.plugin")
    if plugin is not None:
        plugin.uninstall(_EXIT_WAIT_MS)
    if not is_child and is_due and "tensorflow" in sys.modules:
        # By now the package may be gone; hooks that are in place import it.
        with contextlib.suppress(ImportError):
            from amp_tf.hooks import report_files, summary

            summary.log()
            report_files.write()


def install_hooks(trigger: str) -> None:
    """Installs the wanted hooks of one trigger.

    One that fails is warned about and named in the summary line.
    """
    state = current()
    for hook in HOOKS:
        if not hook.is_wanted(process_state.settings()):
            uninstall(hook.home)  # earlier settings may have asked for it
        elif trigger in hook.triggers and getattr(state.switches, hook.part):
            _try_to_install(hook.home)


def _try_to_install(home: str) -> None:
    try:
        install(home)
        process_state.note_install(home)
    except Exception as error:
        process_state.note_install(home, f"{type(error).__name__}: {error}".splitlines()[0])
        what = "a hook was not installed"
        fix = "The program goes on without it; please report this with your TensorFlow version"
        notices.warn_of_error(f"install.{home}", what, error, where=home, fix=fix)


def install(home: str) -> None:
    """Installs one hook by the settings in force, in the libraries that are imported by now.

    Idempotent.
    """
    importlib.import_module(home).install(process_state.patches(home))


def uninstall(home: str) -> None:
    """Takes one hook back. Idempotent."""
    process_state.patches(home).restore()
    undo = getattr(sys.modules.get(home), "uninstall", None)
    if undo is not None:
        undo()


def _uninstall_hooks() -> None:
    # The last one first: if two replace the same attribute, the later has the earlier one inside.
    for hook in reversed(HOOKS):
        uninstall(hook.home)


_Fields = ParamSpec("_Fields")


class _Enable(Protocol[_Fields]):
    """:func:`enable`, to type checkers: it also takes each field of :class:`AmpConfig` by name."""

    def __call__(
        self, config: AmpConfig | None = None, *args: _Fields.args, **settings: _Fields.kwargs
    ) -> Handle: ...


def _with_fields_of(
    config: Callable[_Fields, AmpConfig],
) -> Callable[[Callable[..., Handle]], _Enable[_Fields]]:
    return lambda function: function


@_with_fields_of(AmpConfig)
def enable(config: AmpConfig | None = None, **settings: Any) -> Handle:
    """Rewrites graphs from now on, and scales losses if they run in float16.

    So does ``TF_ENABLE_AUTO_MIXED_PRECISION=1``. It may be called before or after TensorFlow is
    imported. A ``tf.function`` that ran before is traced anew, and so is a Keras model's step.
    Build TF1 graphs after the call: their losses are scaled as they are built, and what a session
    ran already stays as it is. Called again, it replaces the settings, for what ran before, too,
    until its handle takes them back. With ``AMP_TF_DISABLE=1`` it only says so: any program can be
    run without amp_tf from outside.

    Args:
        config: what to convert, in place of what the environment variables say.
        **settings: fields of :class:`AmpConfig`, such as ``precision="bfloat16"``; they change
            ``config``, or what the environment variables say.

    Returns:
        A handle with ``uninstall()``, which also works as a context manager.

    Raises:
        ConfigError: a setting or an environment variable has an invalid value, or there is no such
            setting.
        OpListError: one op is to join two lists.
    """
    if config is None:
        notices.warn_of_unknown_variables()
        base = AmpConfig.from_env()
    else:
        precision = 'precision="bfloat16"'
        fix = f"Write amp_tf.enable({precision}), or amp_tf.enable(amp_tf.AmpConfig({precision}))"
        base = check_config(config, where="amp_tf.enable(config)", fix=fix)
    wanted = Handle(with_settings(base, settings, where="amp_tf.enable"), EVERYTHING)
    if is_disabled():
        notices.emit(
            logging.WARNING,
            f"stays off, although the program calls amp_tf.enable(): {DISABLE_VAR} is set",
        )
        return wanted
    with current().switching:
        _turn_on([*current().stack, wanted])
    return wanted


def disable() -> None:
    """Turns amp_tf off for graphs that TensorFlow optimizes from now on. Idempotent.

    Some things cannot be undone. The optimizer stays registered with TensorFlow, as the identity,
    and TensorFlow's layout optimizer stays off (:mod:`amp_tf.hooks.plugin` says why). Sessions that
    ran already keep their converted graphs, and so do concrete functions, except those for XLA; a
    ``tf.function`` is traced anew. Optimizers that were wrapped for loss scaling stay wrapped.
    """
    _turn_off(BY_CALL)


def is_enabled() -> bool:
    """Tells whether amp_tf is on in this process, by the environment or by :func:`enable`."""
    return _active() is not None


def _is_forbidden() -> bool:
    try:
        return is_disabled()
    except ConfigError:
        return True  # it is reported with the other bad values


def _asked_by_environment() -> tuple[Handle | None, str]:
    """Reads from the environment which settings it asks for.

    If it asks for none, although it did when the program began, the second result says why amp_tf
    is off.
    """
    try:
        switches = Switches.from_env()
        if switches.any:
            return Handle(AmpConfig.from_env(), switches, by_environment=True), ""
    except ConfigError:
        check_environment()  # which reports what else is wrong
        raise
    if is_disabled():
        return None, BY_VARIABLE
    name, value = deciding_switch()
    did = f"unset {name}"
    if value:
        did = f"set {name}={value}"
    return None, (
        f"amp_tf is off: the program itself {did}; to convert anyway, start it with "
        f"{GRAPH_REWRITE_VAR}=1 {LOSS_SCALING_VAR}=1"
    )
