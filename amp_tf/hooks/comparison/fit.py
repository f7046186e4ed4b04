"""The patch of Keras and tf_keras: the first call of a model's train function is compared instead of run.

``fit`` and ``train_on_batch`` create that function and call it with an iterator. So the model is built, and the batches
are those of the training: shuffled, weighted and prepared.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Sequence
from typing import Any

from amp_tf.comparing.train_functions import is_labelled, iterate, owner_of, steps_a_call, without_optionals
from amp_tf.hooks.comparison.calls import Call, as_function
from amp_tf.hooks.comparison.training import Training
from amp_tf.hooks.patches import Patch, calling

_ONE_REPLICA = "the first replica's part of each batch was run, on one device"
_OWN_STEP = "the model's own train_step was run; its loss is multiplied by no loss scale here"


def patches(training: Training, library: str) -> list[Patch]:
    """The patches, as tuples: owner, attribute, and what makes its replacement from the original.

    Args:
        training: the state shared by the patches.
        library: ``"keras"`` or ``"tf_keras"``.
    """
    owner = owner_of(importlib.import_module(library).Model)
    return [(owner, "make_train_function", calling(_make_train_function, training, owner))]


def _make_train_function(training: Training, owner: Any, original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
    result = original(self, *args, **kwargs)
    if training.is_awaited and not isinstance(self.train_function, _Watched):
        self.train_function = _Watched(self.train_function, self, training, owner)
    return result if result is None else self.train_function  # tf_keras returns it, Keras does not


class _Watched:
    """A train function whose first call is compared; if the comparison fails, it trains as it would have.

    Args:
        function: the train function.
        model: whose it is.
        training: the state shared by the patches.
        owner: the class that has the library's own ``train_step``.
    """

    def __init__(self, function: Any, model: Any, training: Training, owner: Any) -> None:
        self._function, self._model, self._training, self._owner = function, model, training, owner
        self._taken: list[Any] = []
        self._again: Any = None  # returns the batches that were taken, once more

    def __call__(self, iterator: Any) -> Any:
        if self._training.is_awaited:
            with self._training.surviving():
                self._compare(iterator)
            self._again = iterate(self._taken) if self._taken else None
        if not self._taken:
            self._again = None
            return self._function(iterator)
        del self._taken[: steps_a_call(self._model)]
        return self._function(self._again)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def _compare(self, iterator: Any) -> None:
        import tensorflow as tf

        a_call = steps_a_call(self._model)
        wanted = -(-self._training.request.steps // a_call) * a_call  # whole calls, so that whole calls are left
        self._taken.extend(itertools.islice(iterator, wanted))
        own = [tf.nest.map_structure(_of_one_replica, batch) for batch in self._taken]
        subject, batches, notes = as_step(self._model, own, self._owner)
        strategy = self._model.distribute_strategy
        if strategy.num_replicas_in_sync == 1:
            self._training.compare(subject, batches, notes)
            return
        with tf.distribute.ReplicaContext(strategy, 0):  # the program may be in the strategy's scope, but in no replica
            self._training.compare(subject, batches, (*notes, _ONE_REPLICA))


def _of_one_replica(value: Any) -> Any:
    """The part of a value that belongs to the first replica."""
    import tensorflow as tf

    return value.values[0] if isinstance(value, tf.distribute.DistributedValues) else value


def as_step(model: Any, taken: Sequence[Any], owner: Any) -> tuple[Any, Sequence[Any], tuple[str, ...]]:
    """The step to compare, its batches, and the notes that go with the result."""
    import tensorflow as tf

    batches = [without_optionals(batch) for batch in taken]
    if type(model).train_step is owner.train_step and all(is_labelled(batch) for batch in batches):
        return model, [tuple(part for part in batch if part is not None) for batch in batches], ()
    step = tf.autograph.experimental.do_not_convert(model.train_step) if owner.__module__.startswith("keras") else None
    calls: list[Call] = [((batch,), {}) for batch in batches]
    return (*as_function(model.name, step or model.train_step, calls, jit_compile=model.jit_compile), (_OWN_STEP,))
