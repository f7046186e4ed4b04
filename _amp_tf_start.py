"""What ``amp_tf.pth`` loads in every Python of the environment: it lets amp_tf in when it is asked for.

A Python that imports no TensorFlow gets a finder that answers nothing. One that does, without the switch, gets one
method of ``os.environ`` wrapped, for scripts and notebooks that set the switch themselves. Only the switch loads the
package. Nothing here raises into the program.

It is installed at the root of site-packages, beside ``amp_tf.pth``, because importing a module of the package would
load the package at each start of each Python. ``__future__`` would be imported as well, so annotations are quoted.
"""

import os
import sys

TYPE_CHECKING = False  # the name that type checkers know; importing typing would cost more than the rest of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

# The switches of config.ENV_VARS. They are read properly, and bad values are told, when TensorFlow is imported: here
# anything but a plain no is taken for a yes.
SWITCHES = (
    "TF_ENABLE_AUTO_MIXED_PRECISION",
    "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE",
    "TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING",
)
DISABLE = "AMP_TF_DISABLE"
SETTINGS = ("AMP_TF_PRECISION", "AMP_TF_KEEP_FLOAT32", "AMP_TF_FORCE_F16", "AMP_TF_ALLREDUCE")  # of config.ENV_VARS
LIBRARIES = ("tensorflow", "keras", "tf_keras")

_ENVIRON = type(os.environ)
_set: "Callable[..., None] | None" = None  # the method that was wrapped
_was_asked_for = False  # when Python began: a program that turns it off itself is told so at its end


class AmpTfStart:
    """A meta path finder that finds nothing itself: it notices that TensorFlow or Keras is about to be imported."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name not in LIBRARIES:
            return None
        try:
            if _is_asked_for() or (_was_asked_for and not _is_disabled()):
                from amp_tf import _autostart

                return _autostart.find_spec(name, path, target)
            _follow()
        except Exception as error:
            _say(error)
        return None


def install() -> None:
    """Adds the finder, unless ``AMP_TF_DISABLE`` forbids it. Idempotent."""
    global _was_asked_for
    if not _is_disabled() and not any(isinstance(finder, AmpTfStart) for finder in sys.meta_path):
        _was_asked_for = _is_asked_for()
        sys.meta_path.insert(0, AmpTfStart())


def _follow() -> None:
    """Wraps the method, once; after the switch was set the package does so itself."""
    global _set
    if _set is None:
        _set = _ENVIRON.__setitem__
        _ENVIRON.__setitem__ = _set_and_look  # type: ignore[method-assign]
        if names := [name for name in SETTINGS if os.environ.get(name)]:
            import atexit

            atexit.register(_tell_idle, names, os.getpid())


def _tell_idle(names: "Sequence[str]", process: int) -> None:
    """At exit: settings without the switch, in a program that did not ask for amp_tf by itself either."""
    if os.getpid() == process and "amp_tf.config" not in sys.modules:
        print(f"amp_tf: {', '.join(names)} alone converts nothing: set {SWITCHES[0]}=1, too.", file=sys.stderr)


def _set_and_look(self: "os._Environ[str]", name: str, value: str) -> None:
    """The replacement of ``os.environ.__setitem__`` until the switch is set."""
    assert _set is not None
    _set(self, name, value)
    if self is not os.environ or name not in (*SWITCHES, DISABLE):
        return
    try:
        if _is_asked_for():
            if _ENVIRON.__setitem__ is _set_and_look:  # else somebody wrapped it again, and keeps it
                _ENVIRON.__setitem__ = _set  # type: ignore[method-assign]
            from amp_tf import _autostart

            _autostart.start()
    except Exception as error:
        _say(error)


def _is_asked_for() -> bool:
    return not _is_disabled() and any(
        os.environ.get(name, "").strip().lower() not in ("", "0", "false") for name in SWITCHES
    )


def _is_disabled() -> bool:
    return os.environ.get(DISABLE, "").strip().lower() in ("1", "true")


def _say(error: Exception) -> None:
    print(f"amp_tf: stays off: {type(error).__name__}: {error}", file=sys.stderr)


install()
