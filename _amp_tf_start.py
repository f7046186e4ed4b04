"""Loads amp_tf when it is asked for: every Python of the environment calls :func:`install`.

A Python that imports no TensorFlow gets a finder that answers nothing. One that does, without the
switch, gets the two methods of ``os.environ`` wrapped that change it, for scripts and notebooks
that set the switch themselves. Only the switch loads the package, which then follows all its
variables by the same two methods. Nothing here raises into the program.

It is installed at the root of site-packages, beside ``amp_tf.pth`` and ``amp_tf.start`` (PEP 829),
which name it, because importing a module of the package would load the package at each start of
each Python. ``__future__`` would be imported as well, so annotations are quoted.

When Python reads these files, ``sys.path`` has neither the script's folder nor the current one,
unless ``PYTHONPATH`` names it; then Python takes its own modules from there, too. The package is
loaded later, when the current folder may be in front, and is found where it was installed, not by
name: another ``amp_tf`` is not to run because a variable is set.
"""

import os
import sys

# the name that type checkers know; importing typing would cost more than the rest of the start
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

# The switches of config.ENV_VARS. They are read properly, and bad values reported, when TensorFlow
# is imported: here anything but a plain no is taken for a yes.
SWITCHES = (
    "TF_ENABLE_AUTO_MIXED_PRECISION",
    "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE",
    "TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING",
)
DISABLE = "AMP_TF_DISABLE"
SETTINGS = (  # of config.ENV_VARS
    "AMP_TF_PRECISION",
    "AMP_TF_FOR",
    "AMP_TF_KEEP_FLOAT32",
    "AMP_TF_FORCE_F16",
    "AMP_TF_ALLREDUCE",
    "AMP_TF_REPORT",
)
# Variables of the images and of setup.py.
OF_THE_BUILD = (
    "AMP_TF_BANNER",
    "AMP_TF_IMAGE",
    "AMP_TF_WHEEL_ARCH",
    "AMP_TF_WITHOUT_PTH",
)
_PREFIXES = ("AMP_TF_", "TF_ENABLE_AUTO", "TF_AUTO_MIX")  # of their names, misspelt or not
# Begins the names of settings, too, which nobody reads without the switch.
_OF_LISTS = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"
LIBRARIES = ("tensorflow", "keras", "tf_keras")
# Of the package. setup.py writes the checkout's in the place of this line where that is used.
HOME = os.path.dirname(os.path.abspath(__file__))

# Programs and tests put a plain dict in the place of os.environ, which cannot be wrapped.
_ENVIRON = os._Environ
# Once there is one, the methods are wrapped for good.
_follower: "Callable[[str], None] | None" = None
_was_asked_for = False  # when Python began: a program that turns it off itself is warned at its end
# Where Python began with the switch on: relative paths in variables are meant from there. Empty
# where the program sets the variables itself, wherever it is by then.
folder = ""


class AmpTfStart:
    """A meta path finder that notices imports of TensorFlow and Keras, and finds nothing itself."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name in LIBRARIES:
            try:
                if _is_asked_for() or (_was_asked_for and not _is_disabled()):
                    _start()  # its finder stands behind this one, and is asked next
                elif _follower is None:
                    follow(_start_if_asked_for)
                    _warn_of_unknown()
                    _warn_at_exit_if_idle()
            except Exception as error:
                _say(error)
        return None


def install() -> None:
    """Adds the finder, unless ``AMP_TF_DISABLE`` forbids it. Idempotent."""
    global _was_asked_for, folder
    if not _is_disabled():
        if _is_asked_for():
            _was_asked_for = True
            folder = _current_folder()
        if not any(isinstance(finder, AmpTfStart) for finder in sys.meta_path):
            sys.meta_path.insert(0, AmpTfStart())


def follow(follower: "Callable[[str], None]") -> None:
    """Calls a function with the name of each variable that the program sets or deletes.

    Args:
        follower: takes the place of the one before.
    """
    global _follower
    is_first = _follower is None
    _follower = follower
    if is_first:
        for method in ("__setitem__", "__delitem__"):
            _wrap(method)


def _wrap(method: str) -> None:
    original = getattr(_ENVIRON, method)

    def changed(self: "os._Environ[str]", name: str, *value: str) -> None:
        original(self, name, *value)
        if self is os.environ and _follower is not None:
            try:
                _follower(name)
            except Exception as error:  # the variable is set in any case
                _say(error, f"{name} was not followed")

    changed.__name__ = method
    changed.__qualname__ = original.__qualname__
    changed.__doc__ = original.__doc__
    setattr(_ENVIRON, method, changed)


def load_package() -> None:
    """Imports our package, from :data:`HOME` alone.

    Raises:
        ImportError: it is not there.
    """
    if "amp_tf" not in sys.modules:
        finder = _OurFinder()
        sys.meta_path.insert(0, finder)
        try:
            __import__("amp_tf")
        finally:
            sys.meta_path.remove(finder)


class _OurFinder:
    """A meta path finder that finds our package, and no other of that name."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name != "amp_tf":
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, [HOME])
        if spec is None or not spec.has_location:
            raise ModuleNotFoundError("No module named 'amp_tf'", name=name)
        return spec


def _start() -> None:
    """Loads the part of the package that waits for TensorFlow, which may be there by now.

    Idempotent.
    """
    load_package()
    from amp_tf.hooks import imports

    # Keras imports TensorFlow, so its own import has begun by then.
    imports.watch("keras", "tf_keras")
    imports.after_import("tensorflow", _on_tensorflow)


def _start_if_asked_for(name: str) -> None:
    if name in (*SWITCHES, DISABLE) and _is_asked_for():
        _start()


def _on_tensorflow(name: str) -> None:
    from amp_tf.hooks import switch

    switch.obey_environment()
    follow(switch.obey_environment)


def _warn_of_unknown() -> None:
    """Warns of names that look misspelt before anything is trained: one may be the switch."""
    known = (*SWITCHES, *SETTINGS, DISABLE, *OF_THE_BUILD)
    odd = (name for name in os.environ if name.startswith(_PREFIXES) and name not in known)
    if any(not name.startswith(_OF_LISTS) for name in odd):
        try:
            load_package()
            from amp_tf.hooks import notices

            notices.warn_of_unknown_variables()
        except ImportError:  # nothing is on, so a package that is gone is not missed
            pass


def _warn_at_exit_if_idle() -> None:
    """Warns at exit of settings without the switch, unless the program asks for amp_tf itself."""
    names = [name for name in SETTINGS if os.environ.get(name)]
    process = os.getpid()
    if not names:
        return
    import atexit

    def warn() -> None:
        if os.getpid() == process and "amp_tf.config" not in sys.modules:
            print(
                f"amp_tf: {', '.join(names)} alone converts nothing: set {SWITCHES[0]}=1, too.",
                file=sys.stderr,
            )

    atexit.register(warn)


def _current_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return ""


def _is_asked_for() -> bool:
    return not _is_disabled() and any(_word(name) not in ("", "0", "false") for name in SWITCHES)


def _is_disabled() -> bool:
    return _word(DISABLE) in ("1", "true")


def _word(name: str) -> str:
    return os.environ.get(name, "").strip().lower()


def _say(error: Exception, what: str = "stays off") -> None:
    print(f"amp_tf: {what}: {type(error).__name__}: {error}", file=sys.stderr)
