"""Waits for the first training step of a program, has it compared, and ends the program.

The request of ``amp-tf compare`` and the answer of the program that it starts are files in one
folder.

Keras: the first call of a model's train function is compared instead of run. ``fit`` and
``train_on_batch`` create that function and call it with an iterator, so the model is built, and the
batches are those of the training: shuffled, weighted and prepared.

A ``tf.function`` that computes gradients (``functions``), and runs of a TF1 session that need them
(``sessions``), are compared after the wanted number of calls, or when the program ends.

A program that trains nothing by its end: what it ran forward is compared (``forward``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

from amp_tf.config import AmpConfig
from amp_tf.errors import AmpError
from amp_tf.hooks import notices, state
from amp_tf.hooks.patches import Patches
from amp_tf.oplists.hardware import Hardware
from amp_tf.precision import Precision
from amp_tf.reporting import files
from amp_tf.tools import train_functions
from amp_tf.tools.comparing.comparison import Comparison
from amp_tf.tools.comparing.forward import Forward
from amp_tf.tools.comparing.functions import Functions
from amp_tf.tools.comparing.pipeline import compare
from amp_tf.tools.comparing.sessions import Sessions
from amp_tf.tools.progress import on_stderr
from amp_tf.tools.train_functions import ReadAhead, as_step

_ONE_REPLICA = "the first replica's part of each batch was run, on one device"
_UNSCALED = (
    "{} does not scale its loss, so small gradients become zero in float16. First {}, then "
    "compare again."
)
_SCALE_IN_LOOP = "scale the loss with amp_tf.LossScaleOptimizer or amp_tf.LossScaler"
_SCALE_IN_MODEL = "take the gradients of self.optimizer.scale_loss(loss) in the model's train_step"
_CLAIM = "claim"  # is made by the first process that trains
_ORDER = "order.json"
_ANSWER = "answer.json"
_OF_FORWARD = "forward.json"


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
        plain = dataclasses.asdict(self) | {"folder": str(self.folder)}
        (self.folder / _ORDER).write_text(json.dumps(plain))

    @classmethod
    def receive(cls, folder: Path) -> CompareRequest:
        """Reads the request from its folder."""
        plain = json.loads((folder / _ORDER).read_text())
        return cls(folder, AmpConfig(**plain["config"]), plain["steps"])

    def answer(self, found: Mapping[str, Any], *, is_of_forward: bool = False) -> None:
        """Writes the answer, whole or not at all: ``comparison`` and its ``text``; or ``error``,
        why there is none.

        A forward step has an answer of its own, because another process of the program may train
        yet.
        """
        files.put(self._answer_file(is_of_forward), json.dumps(dict(found)))

    def read_answer(self, *, is_of_forward: bool = False) -> dict[str, Any] | None:
        """Reads the answer; ``None`` while there is none."""
        try:
            return dict(json.loads(self._answer_file(is_of_forward).read_text()))
        except FileNotFoundError:
            return None

    def _answer_file(self, is_of_forward: bool) -> Path:
        return self.folder / (_OF_FORWARD if is_of_forward else _ANSWER)


class Training:
    """The state that the patches of a comparison share; nothing was compared while it
    ``is_awaited``.
    """

    def __init__(self, request: CompareRequest) -> None:
        self.request = request
        self.is_awaited = True
        self.patches = Patches()
        self.is_scaled = False  #: whether a loss was scaled, by any scaler, in the comparison
        #: whether the step that is compared is a model's own; amp_tf wraps its optimizer
        self.is_of_model = False
        self.forward = Forward(request.steps)
        self.functions = Functions(self)
        self.sessions = Sessions(self)
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def surviving(self) -> Iterator[None]:
        """Stops waiting, with one warning, if anything in the block fails; the program goes on."""
        try:
            yield
        except Exception as error:
            self.is_awaited = False
            why = str(error) if isinstance(error, AmpError) else f"{type(error).__name__}: {error}"
            with contextlib.suppress(OSError):  # a full disk, or the command has ended
                if "comparison" not in (self.request.read_answer() or {}):  # of another process
                    self.request.answer({"error": why})
            notices.warn_once(
                "comparison.failed",
                f"nothing is compared ({why.rstrip('.')})",
                where="amp-tf compare",
                fix="The program goes on as it was; interrupt it if that is not wanted",
            )

    def compare(self, subject: Any, batches: Sequence[Any], notes: Sequence[str] = ()) -> None:
        """Compares a step, writes the answer and ends the program by a SystemExit; does nothing the
        second time.
        """
        with self._lock:
            is_first = self.is_awaited
            self.is_awaited = False
        if not is_first:
            return
        try:
            (self.request.folder / _CLAIM).touch(exist_ok=False)
        except FileExistsError:  # another process was the first one that trains
            return
        self.is_scaled = False
        found = self.request.compare(subject, batches, state.hardware(), notes)
        # The loss of a model, and of a session's optimizer, is scaled by amp_tf.
        must_scale = isinstance(subject, FunctionType) and found.precision is Precision.FLOAT16
        if must_scale and not self.is_scaled:
            remedy = _SCALE_IN_LOOP
            if self.is_of_model:
                remedy = _SCALE_IN_MODEL
            headline = _UNSCALED.format(found.name, remedy)
            found = dataclasses.replace(found, headline=headline, patterns=(), products_kept=0)
        self.request.answer({"comparison": found.to_dict(), "text": str(found)})
        raise SystemExit(0 if found.is_healthy else 1)

    def compare_at_exit(self) -> None:
        """Compares what was called fewer times than wanted, as the program ends; else what it only
        ran forward.
        """
        if not self.is_awaited:
            return
        with self.surviving(), contextlib.suppress(SystemExit):
            self.functions.compare()
            self.sessions.compare()
            step = self.forward.most_called()
            if step is not None and not (self.request.folder / _CLAIM).exists():
                subject, batches, notes = step
                found = self.request.compare(subject, batches, state.hardware(), notes)
                answer = {"comparison": found.to_dict(), "text": str(found)}
                self.request.answer(answer, is_of_forward=True)

    def note_scaling(self, original: Any, scaler: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Notes that a scaler scales a loss."""
        self.is_scaled = True
        return original(scaler, *args, **kwargs)

    def note_scaling_of_model(
        self, original: Any, optimizer: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Notes the same of a bare optimizer: of a model, amp_tf wraps it, and it scales then."""
        self.is_scaled |= self.is_of_model
        return original(optimizer, *args, **kwargs)


def install(training: Training, library: str) -> None:
    """Patches ``"tensorflow"``, ``"keras"`` or ``"tf_keras"``, which was imported."""
    if library == "tensorflow":
        state.watch_collections()
        patches = [*training.functions.patches(), *training.sessions.patches()]
    else:
        patches = [*_patches_of_keras(training, library), *training.forward.patches(library)]
    for owner, name, ours in patches:
        training.patches.put(owner, name, ours)


def _patches_of_keras(training: Training, library: str) -> list[tuple[Any, str, Any]]:
    """Returns the patches that watch ``fit``, and the scalers of a library."""

    def watch(model: Any, owner: Any) -> Any:
        function = model.train_function
        if not training.is_awaited:
            return function
        return _WatchedFit(function, model, training, owner)

    patches: list[tuple[Any, str, Any]] = [train_functions.patch(library, "train", watch)]
    module = sys.modules[library]
    if library == "keras":
        scaler = module.optimizers.LossScaleOptimizer
        patches.append((scaler, "scale_loss", training.note_scaling))
        patches.append((module.optimizers.Optimizer, "scale_loss", training.note_scaling_of_model))
        return patches
    scaler = module.mixed_precision.LossScaleOptimizer
    for one in (scaler, *scaler.__subclasses__()):  # tf_keras has two
        if one.__module__.startswith(library):
            patches.append((one, "get_scaled_loss", training.note_scaling))
    return patches


class _WatchedFit(ReadAhead):
    """A model's train function whose first call is compared; if the comparison fails, it trains as
    it would have.
    """

    def __init__(self, function: Any, model: Any, training: Training, owner: Any) -> None:
        super().__init__(function, model)
        self._training = training
        self._owner = owner

    def __call__(self, iterator: Any) -> Any:
        if self._training.is_awaited:
            with self._training.surviving():
                self._compare(self.take(iterator, self._training.request.steps))
        return super().__call__(iterator)

    def _compare(self, taken: Sequence[Any]) -> None:
        import tensorflow as tf

        def of_one_replica(value: Any) -> Any:
            if isinstance(value, tf.distribute.DistributedValues):
                return value.values[0]
            return value

        own = [tf.nest.map_structure(of_one_replica, batch) for batch in taken]
        subject, batches, notes = as_step(self._model, own, self._owner)
        self._training.is_of_model = True
        strategy = self._model.distribute_strategy
        if strategy.num_replicas_in_sync == 1:
            self._training.compare(subject, batches, notes)
            return
        # The program may be in the strategy's scope, but in no replica.
        with tf.distribute.ReplicaContext(strategy, 0):
            self._training.compare(subject, batches, (*notes, _ONE_REPLICA))
