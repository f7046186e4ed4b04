"""Watches the train, test and predict functions of Keras models.

The first call of a train function is compared instead of run. ``fit`` and ``train_on_batch`` create
that function and call it with an iterator, so the model is built, and the batches are those of the
training: shuffled, weighted and prepared.

Test and predict functions run as usual, because the program may still train, and their first
batches are copied: their iterator is read ahead by as many batches as are compared, and then these
are given to the function.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from amp_tf.tools.comparing.calls import Calls, Function, Patch

if TYPE_CHECKING:
    from amp_tf.tools.comparing.training import Training

_TRAIN = "train"
_TEST = "test"
_KINDS = (_TRAIN, _TEST, "predict")  # of the functions that models make
_OWN_STEP = "the model's own train_step was run; its loss is multiplied by no loss scale here"
_ONE_REPLICA = "the first replica's part of each batch was run, on one device"


class Models:
    """The models of a program."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.forward: list[Calls] = []  #: the first calls of each test and predict function

    def patches(self, library: str) -> list[Patch]:
        """Returns the patches of ``"keras"`` or ``"tf_keras"`` that watch models and scalers."""
        patches = [_patch(library, kind, self._watch) for kind in _KINDS]
        module = sys.modules[library]
        noting = self._training.note_scaling
        if library == "keras":
            patches.append((module.optimizers.LossScaleOptimizer, "scale_loss", noting))
            bare = self._training.note_scaling_of_model
            patches.append((module.optimizers.Optimizer, "scale_loss", bare))
            return patches
        scaler = module.mixed_precision.LossScaleOptimizer
        for one in (scaler, *scaler.__subclasses__()):  # tf_keras has two
            if one.__module__.startswith(library):
                patches.append((one, "get_scaled_loss", noting))
        return patches

    def _watch(self, kind: str, model: Any, owner: Any) -> Any:
        """Returns what takes the place of a model's new function."""
        function = getattr(model, f"{kind}_function")
        if kind == _TRAIN:
            return functools.partial(self._train, function, model, owner)
        if model.distribute_strategy.num_replicas_in_sync > 1:
            return function
        step = model.predict_step  # it takes the batches of both, and ignores labels
        if kind == _TEST and type(model).test_step is not owner.test_step:
            step = model.test_step
        calls = self._calls(model, step, owner)
        self.forward.append(calls)
        return _WatchedForward(function, model, calls)

    def _calls(self, model: Any, step: Function, owner: Any) -> Calls:
        """Makes the empty record of calls of a model's step."""
        import tensorflow as tf

        if owner.__module__.startswith("keras"):
            step = tf.autograph.experimental.do_not_convert(step)
        jit_compile = getattr(model, "jit_compile", None)
        is_eager = bool(model.run_eagerly)
        return Calls(model.name, step, jit_compile, self._training.request.steps, is_eager)

    def _train(self, function: Any, model: Any, owner: Any, iterator: Any) -> Any:
        """Compares the model's step, which ends the program.

        If another process of the program does so, this one trains.
        """
        if self._training.claim():
            with self._training.answering():
                taken = list(itertools.islice(iterator, self._training.request.steps))
                self._compare(model, owner, taken)
        return function(iterator)

    def _compare(self, model: Any, owner: Any, taken: Sequence[Any]) -> None:
        """Compares the loss and gradients of a model, or the step of its own that it has."""
        import tensorflow as tf

        batches = [tf.nest.map_structure(_of_first_replica, batch) for batch in taken]
        subject: Any = model
        notes: tuple[str, ...] = ()
        if type(model).train_step is owner.train_step and all(map(_is_labelled, batches)):
            batches = list(map(_without_none, batches))
        else:
            subject = self._calls(model, model.train_step, owner)
            for batch in batches:
                subject.keep(batch)
            notes = (_OWN_STEP,)
        self._training.is_of_model = True
        strategy = model.distribute_strategy
        if strategy.num_replicas_in_sync == 1:
            self._training.compare(subject, batches, notes)
        else:  # The program may be in the strategy's scope, but in no replica.
            with tf.distribute.ReplicaContext(strategy, 0):
                self._training.compare(subject, batches, (*notes, _ONE_REPLICA))


def _patch(library: str, kind: str, watch: Callable[[str, Any, Any], Any]) -> Patch:
    """Returns the patch that wraps the functions which models make from now on.

    Args:
        library: ``"keras"`` or ``"tf_keras"``.
        kind: one of ``_KINDS``.
        watch: called with the kind, a model that has a new such function, and the class that has
            the library's own steps; it returns what takes the function's place.
    """
    attribute = f"{kind}_function"
    maker = f"make_{kind}_function"
    model_class = importlib.import_module(library).Model
    owner = next(base for base in model_class.__mro__ if maker in vars(base))

    def make_function(original: Any, model: Any, /, *args: Any, **kwargs: Any) -> Any:
        before = getattr(model, attribute)
        result = original(model, *args, **kwargs)
        if getattr(model, attribute) is not before:
            setattr(model, attribute, watch(kind, model, owner))
        if result is None:  # Keras 3 returns nothing, tf_keras the function
            return None
        return getattr(model, attribute)

    return owner, maker, make_function


def _of_first_replica(leaf: Any) -> Any:
    """Returns the first replica's part of a leaf.

    Keras passes ``None`` as an Optional, which becomes ``None`` again.
    """
    import tensorflow as tf

    if isinstance(leaf, tf.distribute.DistributedValues):
        leaf = leaf.values[0]
    if isinstance(leaf, tf.experimental.Optional):
        return None
    return leaf


def _without_none(batch: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(part for part in batch if part is not None)


def _is_labelled(batch: Any) -> bool:
    """Tells whether a batch is ``(x, y)`` or ``(x, y, sample_weight)``."""
    if not isinstance(batch, tuple) or len(batch) not in (2, 3):
        return False
    return batch[0] is not None and batch[1] is not None


class _WatchedForward:
    """A model's test or predict function, whose first batches are kept."""

    def __init__(self, function: Any, model: Any, calls: Calls) -> None:
        self._function = function
        self._model = model
        self._calls = calls
        self._source: Any = None  # the iterator that was read ahead
        self._again: Any = None  # returns the batches that were taken from it
        self._left = 0  # how many of these the program has not got back yet

    def __call__(self, data: Any) -> Any:
        import tensorflow as tf

        batches: Any = []
        if isinstance(data, (list, tuple)):  # Keras 3's predict hands over batches
            batches = data
        elif isinstance(data, tf.data.Iterator) and not self._calls.kept:
            batches = self._taken(data)
        with contextlib.suppress(Exception):
            for batch in batches:
                self._calls.keep(tf.nest.map_structure(_of_first_replica, batch))
        if data is self._source and self._left > 0:
            self._left -= self._steps_a_call
            data = self._again
        return self._function(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def _taken(self, iterator: Any) -> list[Any]:
        """Takes as many batches as are kept, and those that fill the last call."""
        import tensorflow as tf

        a_call = self._steps_a_call
        wanted = -(-self._calls.most // a_call) * a_call
        taken = list(itertools.islice(iterator, wanted))
        if taken:
            again: Any = tf.data.Dataset.from_tensors(taken[0])
            for batch in taken[1:]:
                again = again.concatenate(tf.data.Dataset.from_tensors(batch))
            self._again = iter(again)
        self._source = iterator
        self._left = len(taken)
        return taken

    @property
    def _steps_a_call(self) -> int:
        """How many batches one call of the function takes."""
        # Keras 3 has a number, tf_keras a variable, and a model that is not compiled neither.
        for name in ("steps_per_execution", "_steps_per_execution"):
            count = getattr(self._model, name, None)
            if count is not None:
                return int(count)
        return 1
