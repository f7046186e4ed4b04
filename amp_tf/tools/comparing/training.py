"""Waits for the first training step of a program, has it compared, and ends the program.

The request of ``amp-tf compare`` and the answer of the program that it starts are files in one
folder.

A step is that of a Keras model (``models``), a ``tf.function`` that computes gradients
(``functions``), or runs of a TF1 session that need them (``sessions``). The last two are compared
after the wanted number of calls, or when the program ends. If a program has trained nothing when it
ends, its forward calls are compared, unless an error ended it: it might have trained afterwards. An
end by Ctrl-C begins no comparison.

A comparison that fails ends the program, too.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.errors import AmpError
from amp_tf.hooks import layer_paths, state, switch
from amp_tf.hooks.patches import Patches
from amp_tf.oplists.hardware import Hardware
from amp_tf.precision import Precision
from amp_tf.reporting import files
from amp_tf.tools.comparing.calls import Calls
from amp_tf.tools.comparing.comparison import Comparison
from amp_tf.tools.comparing.functions import Functions
from amp_tf.tools.comparing.models import Models
from amp_tf.tools.comparing.pipeline import compare
from amp_tf.tools.comparing.sessions import Sessions
from amp_tf.tools.progress import on_stderr
from amp_tf.tools.starting import TENSORFLOW

NOT_COMPARED = 2  #: the exit status of a program whose comparison failed
_UNSCALED = (
    "{} does not scale its loss, so small gradients become zero in float16. First {}, then "
    "compare again."
)
_SCALE_IN_LOOP = "scale the loss with amp_tf.LossScaleOptimizer or amp_tf.LossScaler"
_SCALE_IN_MODEL = "take the gradients of self.optimizer.scale_loss(loss) in the model's train_step"
_OF_FORWARD = "the program trained nothing: the results of {} were compared, and no gradients"
_CLAIM = "claim"  # the file that the first process that trains makes
_ORDER = "order.json"
# The answers. A program may have several processes, one after the other or at the same time. What
# the one with the claim found counts, or why it found nothing; the others count without a claim.
_TRAINED = "trained.json"
_FORWARD = "forward.json"
_CRASH = "crash.json"  # the error of the program itself that ended a process
_INTERRUPTED = "interrupted"  # the file that the command makes at Ctrl-C


@dataclasses.dataclass(frozen=True)
class CompareRequest:
    """The settings of a comparison in another process."""

    folder: Path  #: where the files lie
    config: AmpConfig  #: what to convert
    steps: int  #: how many batches at most

    def compare(
        self, subject: Any, batches: Iterable[Any], hardware: Hardware, notes: Sequence[str] = ()
    ) -> Comparison:
        """Compares a step on its batches, as :func:`amp_tf.compare` takes them."""
        return compare(
            subject,
            batches,
            self.config,
            steps=self.steps,
            hardware=hardware,
            progress=on_stderr("amp-tf compare"),
            notes=notes,
        )

    def send(self) -> None:
        """Writes the request into its folder, from where :meth:`receive` reads it."""
        plain = {"config": dataclasses.asdict(self.config), "steps": self.steps}
        files.put_plain(self.folder / _ORDER, plain)

    @classmethod
    def receive(cls, folder: Path) -> CompareRequest:
        """Reads the request from its folder."""
        plain = files.read_plain(folder / _ORDER)
        return cls(folder, AmpConfig(**plain["config"]), plain["steps"])

    def answer(self, comparison: Comparison | None, why: str = "", *, is_training: bool) -> None:
        """Writes a comparison, or why there is none, which replaces no comparison."""
        path = self.folder / _FORWARD
        if is_training:
            path = self.folder / _TRAINED
        if comparison is not None:
            files.put_plain(path, comparison.to_plain())
        elif not path.exists():
            files.put_plain(path, why)

    def read_answer(self) -> Comparison | str:
        """Reads the comparison, or why there is none; empty where there is no answer yet."""
        name = _FORWARD
        if self.is_claimed:
            name = _TRAINED
        plain: Any = files.read_plain(self.folder / name) or ""
        if isinstance(plain, str):
            return plain
        return Comparison.of_plain(plain)

    def read_crash(self) -> str:
        """Reads the error of the program's own that ended a process; empty where none did."""
        crash: str = files.read_plain(self.folder / _CRASH) or ""
        return crash

    def interrupt(self) -> None:
        """Notes that the user has interrupted the program."""
        (self.folder / _INTERRUPTED).touch()

    @property
    def is_interrupted(self) -> bool:
        """Tells whether the user has interrupted the program, which it may have handled."""
        return (self.folder / _INTERRUPTED).exists()

    @property
    def is_claimed(self) -> bool:
        """Tells whether a process of the program trains."""
        return (self.folder / _CLAIM).exists()

    @property
    def is_answered(self) -> bool:
        """Tells whether the process that trains has answered, and is about to end."""
        return (self.folder / _TRAINED).exists()


_training: Training | None = None


def start(library: str, folder: str) -> None:
    """Watches a library that was imported.

    If nothing was compared before the program ends, it is compared then.
    """
    global _training
    if _training is None:
        _training = Training(CompareRequest.receive(Path(folder)))
        atexit.register(_training.compare_at_exit)
    with _training.answering():
        switch.install(layer_paths.__name__)  # for patterns that are for layers
        _training.install(library)


class Training:
    """Holds the state that the patches of a comparison share.

    Nothing was compared while it ``is_awaited``.
    """

    def __init__(self, request: CompareRequest) -> None:
        self.request = request
        self.is_awaited = True
        self._has_claim = False  #: whether this process is the one of the program that trains
        self.is_scaled = False  #: whether a loss was scaled, by any scaler, in the comparison
        #: whether the step that is compared is a model's own; amp_tf wraps its optimizer
        self.is_of_model = False
        self.functions = Functions(self)
        self.models = Models(self)
        self.sessions = Sessions(self)
        self._patches = Patches()
        self._lock = threading.Lock()

    def install(self, library: str) -> None:
        """Patches ``"tensorflow"``, ``"keras"`` or ``"tf_keras"``, which was imported."""
        if library == TENSORFLOW:
            state.watch_collections()
            patches = [*self.functions.patches(), *self.sessions.patches()]
        else:
            patches = self.models.patches(library)
        for owner, name, ours in patches:
            self._patches.put(owner, name, ours)

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Answers by the error, and ends the program, if anything in the block fails."""
        try:
            yield
        except Exception as error:
            self.is_awaited = False
            why = _words(error)
            if isinstance(error, AmpError):
                why = str(error)
            with contextlib.suppress(OSError):  # a full disk, or the command has ended
                self.request.answer(None, why, is_training=self._has_claim)
            raise SystemExit(NOT_COMPARED) from None

    def claim(self) -> bool:
        """Tells, once, whether this process is the first one of the program that trains."""
        with self._lock:
            is_first = self.is_awaited
            self.is_awaited = False
        if not is_first:
            return False
        try:
            (self.request.folder / _CLAIM).touch(exist_ok=False)
        except OSError:  # another process was the first one, or the command has ended
            return False
        self._has_claim = True
        return True

    def compare(self, subject: Any, batches: Sequence[Any], notes: Sequence[str] = ()) -> None:
        """Compares a step that is claimed, and writes the answer.

        It ends the program by a SystemExit.
        """
        self.is_scaled = False
        comparison = self.request.compare(subject, batches, state.hardware(), notes)
        # The loss of a model, and of a session's optimizer, is scaled by amp_tf.
        must_scale = isinstance(subject, Calls) and comparison.precision is Precision.FLOAT16
        if must_scale and not self.is_scaled:
            remedy = _SCALE_IN_LOOP
            if self.is_of_model:
                remedy = _SCALE_IN_MODEL
            headline = _UNSCALED.format(comparison.name, remedy)
            comparison = dataclasses.replace(
                comparison, headline=headline, patterns=(), products_kept=0
            )
        self.request.answer(comparison, is_training=True)
        raise SystemExit(0 if comparison.is_healthy else 1)

    def compare_at_exit(self) -> None:
        """Compares a step with fewer calls than wanted, as the program ends.

        If there is none, forward calls are compared, unless an error ended the program.
        """
        if self.is_interrupted:
            return
        failure = getattr(sys, "last_value", None)
        if failure is not None:
            with contextlib.suppress(OSError):
                files.put_plain(self.request.folder / _CRASH, _words(failure))
        if not self.is_awaited:
            return
        with contextlib.suppress(SystemExit, KeyboardInterrupt), self.answering():
            self.functions.compare()
            self.sessions.compare()
            if failure is None:
                self._compare_forward()

    @property
    def is_interrupted(self) -> bool:
        """Tells whether the user interrupts the program, which may be why it ends just now."""
        errors: list[Any] = [getattr(sys, "last_value", None)]
        # TensorFlow closes a session in another thread than the one that is interrupted.
        current: dict[int, Any] = sys._current_exceptions()
        for found in current.values():
            errors.append(found[1] if isinstance(found, tuple) else found)  # before Python 3.12
        is_ended = any(isinstance(error, KeyboardInterrupt) for error in errors)
        return is_ended or self.request.is_interrupted

    def _compare_forward(self) -> None:
        """Compares the forward function with most calls, unless a process trains.

        Models come before functions.
        """
        called = [calls for calls in self.models.forward if calls.kept]
        called = called or [calls for calls in self.functions.forward if calls.kept]
        if not called or self.request.is_claimed:
            return
        most = max(called, key=lambda calls: len(calls.kept))
        notes = (_OF_FORWARD.format(most.name),)
        comparison = self.request.compare(most, most.kept, state.hardware(), notes)
        self.request.answer(comparison, is_training=False)

    def note_scaling(self, original: Any, scaler: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Notes that a scaler scales a loss."""
        self.is_scaled = True
        return original(scaler, *args, **kwargs)

    def note_scaling_of_model(
        self, original: Any, optimizer: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Notes that the optimizer of a model scales a loss.

        amp_tf wraps it, and the wrapper scales.
        """
        self.is_scaled |= self.is_of_model
        return original(optimizer, *args, **kwargs)


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
