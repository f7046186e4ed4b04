"""The hooks into TensorFlow and Keras, as a table.

A hook is a module with ``install(config)`` and ``uninstall()``, both idempotent. ``install`` is called after the import
of each of its triggers, so it patches what is there and leaves the rest for the next call.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys

from amp_tf.config import AmpConfig, Switches
from amp_tf.hooks.process import notices
from amp_tf.hooks.process import state as process_state


@dataclasses.dataclass(frozen=True)
class Hook:
    """One row of the table.

    Attributes:
        part: the field of :class:`amp_tf.config.Switches` that turns it on.
        home: the module that holds it.
        triggers: modules after whose import it is installed.
        setting: the field of :class:`amp_tf.config.AmpConfig` without which it is not even imported; empty for none.
            So the watchdog, a tool above this package, is loaded by its name alone, and only where it is asked for.
    """

    part: str
    home: str
    triggers: tuple[str, ...]
    setting: str = ""


HOOKS: tuple[Hook, ...] = (
    Hook("graph_rewrite", "amp_tf.hooks.grappler.plugin", ("tensorflow",)),
    Hook("graph_rewrite", "amp_tf.hooks.grappler.input_pipelines", ("tensorflow",)),
    Hook("graph_rewrite", "amp_tf.hooks.xla", ("tensorflow",)),
    Hook("graph_rewrite", "amp_tf.hooks.all_reduce.sums", ("tensorflow",)),
    Hook("graph_rewrite", "amp_tf.hooks.all_reduce.agreement", ("tensorflow",)),
    Hook("graph_rewrite", "amp_tf.hooks.optimizer_state.creation", ("tensorflow", "keras", "tf_keras")),
    Hook("graph_rewrite", "amp_tf.hooks.process.report_files", ("tensorflow",)),
    Hook("graph_rewrite", "amp_tf.hooks.tflite", ("tensorflow",)),
    Hook("graph_rewrite", "amp_tf.hooks.step_times", ("tensorflow", "keras", "tf_keras")),
    Hook("graph_rewrite", "amp_tf.hooks.keras_policy", ("keras", "tf_keras")),
    Hook("graph_rewrite", "amp_tf.hooks.layer_paths", ("keras", "tf_keras")),
    Hook("graph_rewrite", "amp_tf.tools.watchdog", ("keras", "tf_keras"), setting="watchdog"),
    Hook("loss_scaling", "amp_tf.hooks.loss_scaling.automatic", ("tensorflow", "keras", "tf_keras")),
)
TRIGGERS = tuple(dict.fromkeys(trigger for hook in HOOKS for trigger in hook.triggers))


def install(trigger: str, config: AmpConfig, switches: Switches) -> None:
    """Installs the wanted hooks of one trigger.

    A hook that fails leads to a warning and is named in the line at exit; the others are installed all the same.
    """
    for hook in HOOKS:
        if hook.setting and not getattr(config, hook.setting):
            _uninstall(hook)  # which earlier settings asked for
        elif trigger in hook.triggers and getattr(switches, hook.part) and importlib.util.find_spec(hook.home):
            try:
                importlib.import_module(hook.home).install(config)
                process_state.note_install(hook.home)
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
                process_state.note_install(hook.home, failure.splitlines()[0])
                notices.warn_once(
                    f"install.{hook.home}",
                    f"a hook was not installed ({failure})",
                    where=hook.home,
                    fix="The program goes on without it; please report this with your TensorFlow version",
                )


def uninstall() -> None:
    """Uninstalls every hook that was installed. Idempotent."""
    for hook in HOOKS:
        _uninstall(hook)


def _uninstall(hook: Hook) -> None:
    module = sys.modules.get(hook.home)
    if module is not None:
        module.uninstall()
