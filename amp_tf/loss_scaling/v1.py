"""The wrapper for ``tf.compat.v1.train`` optimizers, in sessions and in eager code."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from amp_tf.errors import ConfigError
from amp_tf.loss_scaling import finite, replicas
from amp_tf.loss_scaling.calls import inner_call
from amp_tf.loss_scaling.ledger import DEFAULT_MAX_SKIPS
from amp_tf.loss_scaling.scaler import Memory, Pairs, Scaler, own_names, unzip
from amp_tf.loss_scaling.schedule import DEFAULT_INITIAL_SCALE, Schedule, build_schedule
from amp_tf.loss_scaling.wrapping import (
    ScalingMethods,
    accepted,
    delegating,
    without_autograph,
)
from amp_tf.oplists.table import GRADIENT_ACCUMULATORS

_v1: Any = tf.compat.v1

# An optimizer that was wrapped automatically is not the wrapper, so it has no scale_loss.
_COMPUTE = (
    "Take the gradients from optimizer.compute_gradients(loss, variables), or write optimizer = "
    "amp_tf.LossScaleOptimizer(optimizer) and give optimizer.scale_loss(loss) to tf.gradients. If "
    "the program scales its loss itself, set TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING=0"
)


class _ScaleVariables(_v1.mixed_precision.LossScale):  # type: ignore[misc]
    """The scale and its counters as variables.

    The first two are named as TensorFlow names them in checkpoints.
    """

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self.schedule = schedule
        first = schedule.initial_state().scale
        self.scale = self._add_weight("current_loss_scale", first, tf.float32)
        self.good_steps = self._add_weight("good_steps", 0, tf.int64)
        self.counters = self._add_weight("loss_scale_counters", [0] * 5, tf.int64)

    def __call__(self) -> Any:
        return self.read(self.scale)

    def read(self, variable: Any) -> Any:
        """The value of a variable; its initial value in a session that has not initialized it.

        A program may create its initializer before its optimizer, initialize only the variables
        that it trains, or set all others to zero, which is no scale.
        """
        if not _is_in_session():
            return tf.convert_to_tensor(variable)
        first = self._first(variable)
        is_initialized = type(variable).is_initialized(variable)
        value = tf.cond(is_initialized, variable.read_value, lambda: first)
        return tf.where(tf.equal(value, 0), first, value)

    def _add_weight(self, name: str, initial_value: Any, dtype: Any = None) -> Any:
        variable = super()._add_weight(name, initial_value, dtype)
        if _is_in_session():
            # A session that asks whether it is ready calls this.
            variable.is_initialized = functools.partial(self._initialize, variable)
        return variable

    def _initialize(self, variable: Any, name: str | None = None) -> Any:
        """Gives a variable its initial value in a session that has not initialized it.

        Returns a tensor: true.
        """

        def assign() -> Any:
            assigned = variable.assign(self._first(variable), read_value=False)
            with tf.control_dependencies([assigned]):
                return tf.constant(True)

        is_initialized = type(variable).is_initialized(variable, name)
        return tf.cond(is_initialized, lambda: tf.constant(True), assign)

    def _first(self, variable: Any) -> Any:
        first: Any = 0
        if variable is self.scale:
            first = self.schedule.initial_state().scale
        return tf.constant(first, variable.dtype, variable.shape)

    def update(self, grads: Any) -> Any:
        """Refuses: TensorFlow's own wrapper was given this scale."""
        raise ConfigError(
            "this loss scale works only inside amp_tf's own wrapper",
            where="tf.compat.v1 loss scale",
            fix="Wrap the optimizer with amp_tf.LossScaleOptimizer",
        )

    def get_config(self) -> dict[str, Any]:
        return {"initial_loss_scale": float(self.schedule.initial_state().scale)}


def _is_in_session() -> bool:
    """Tells whether variables belong to a session, which may not have initialized them."""
    is_eager = _v1.executing_eagerly_outside_functions()
    return not is_eager and not tf.distribute.has_strategy()


@delegating("get_slot", "get_slot_names")
class LossScaleOptimizer(ScalingMethods, _v1.mixed_precision.MixedPrecisionLossScaleOptimizer):  # type: ignore[misc]
    """A TF1 optimizer that scales the loss and skips steps with nonfinite gradients.

    ``minimize`` needs nothing else; gradients may be clipped between ``compute_gradients``, which
    returns them unscaled, and ``apply_gradients``. A skipped step changes nothing but the scale and
    its counters: ``global_step`` stays, unless a hundred steps were skipped in a row, or the
    gradients come from accumulators, as those of ``SyncReplicasOptimizer`` do. A graph that calls
    ``tf.gradients`` itself scales the loss with :meth:`scale_loss`, and ``apply_gradients`` then
    unscales.

    Arguments and errors are those of :func:`amp_tf.LossScaleOptimizer`.
    """

    def __init__(
        self, opt: Any, initial_scale: float = DEFAULT_INITIAL_SCALE, **settings: Any
    ) -> None:
        schedule = build_schedule(initial_scale, **settings)
        self._methods: Mapping[str, Any] = {}
        variables = _ScaleVariables(schedule)
        counters = (variables.good_steps, variables.counters)
        memory = Memory(variables.scale, *counters, read=variables.read)
        self._scaler = Scaler(schedule, memory)
        super().__init__(opt, variables)

    @property
    def inner_optimizer(self) -> Any:
        """The wrapped optimizer."""
        return self._optimizer

    @without_autograph
    def compute_gradients(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
        """Scales the loss, and returns the gradients unscaled, each with its variable.

        The loss is a tensor or a callable that returns one.
        """
        scaled = self.get_scaled_loss(loss)
        with inner_call():
            pairs = self._inner_method("compute_gradients")(scaled, *args, **kwargs)
        gradients, variables = unzip(pairs)
        return list(zip(self.get_unscaled_gradients(gradients), variables, strict=True))

    @without_autograph
    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None, **kwargs: Any
    ) -> Any:
        """Applies one step, or skips it; other arguments go to the inner optimizer.

        Returns the operation to run; in eager code, whether the step was taken.
        """
        replicas.check_in_replica("apply_gradients")
        if not self._scaler.decides(self._optimizer.get_name()):
            return self._apply(grads_and_vars, kwargs, global_step=global_step, name=name)
        given = list(grads_and_vars)
        is_accumulated = not tf.executing_eagerly() and any(map(_is_accumulated, given))
        if not self._scaler.calls.are_of_losses(unzip(given)[0]):
            # They were accumulated, and the step is run apart from the losses: it must not ask
            # whether these were finite.
            self._scaler._take_loss()
        gradients, variables = self._take_pairs(given)

        def step(gradients: Any) -> Any:
            pairs = list(zip(gradients, variables, strict=True))
            return self._apply(pairs, kwargs, global_step=global_step)

        # Checkpoints know variables by their names, so the step has the name scope around the
        # condition.
        scope = tf.get_current_name_scope()
        if scope:
            scope += "/"
        with _conditions_for(variables):
            taken = self._scaler.step(
                gradients,
                step,
                around=lambda _: tf.name_scope(scope),
                headroom=replicas.count(),
            )
        if tf.executing_eagerly():
            return taken
        done = [taken]
        if global_step is not None and (is_accumulated or not tf.distribute.has_strategy()):
            done.append(self._count_skipped(global_step, taken, is_accumulated))
        train_op = tf.group(*done, name=name or self.get_name())
        kept = _v1.get_collection_ref(_v1.GraphKeys.TRAIN_OP)
        if all(train_op is not each for each in kept):  # a tensor is compared by its value
            _v1.add_to_collection(_v1.GraphKeys.TRAIN_OP, train_op)
        return train_op

    @without_autograph
    def apply_zeros_for_nonfinite(self, grads_and_vars: Any) -> Any:
        """Applies every step, with zeros for all gradients where one of them is nonfinite.

        It is for an inner optimizer whose step cannot be built inside a condition. Effects that do
        not depend on gradients (``global_step``, weight decay, decaying moments) happen in each
        step. It works only without a strategy, because each replica checks its own gradients.

        Returns the operation to run.
        """
        gradients, variables = self._take_pairs(grads_and_vars)
        taken = self._scaler.step(gradients, lambda _: None, headroom=replicas.count())

        def zero(value: Any) -> Any:
            return tf.where(taken, value, tf.zeros_like(value))

        zeroed = [finite.map_values(zero, gradient) for gradient in gradients]
        applied = self._apply(list(zip(zeroed, variables, strict=True)), {})
        return tf.group(applied, taken)

    def _count_skipped(self, global_step: Any, taken: Any, is_accumulated: bool) -> Any:
        """Counts a skipped step in ``global_step`` where that must go on; returns the operation.

        Accumulators drop gradients of the steps before theirs. And a program that trains until some
        step is reached would never end if all were skipped, as where the data is NaN.
        """
        with tf.control_dependencies([taken]), own_names():
            skipped_in_row = self._scaler.memory.load().skipped_in_row
        is_counted = tf.constant(is_accumulated) | (skipped_in_row >= DEFAULT_MAX_SKIPS)
        missing = tf.cast(~taken & is_counted, global_step.dtype.base_dtype)
        return _v1.assign_add(global_step, missing)

    def delegate_to(self, methods: Mapping[str, Any]) -> None:
        """Makes the wrapper call these in place of the inner optimizer's own, which call it."""
        self._methods = methods

    def _take_pairs(self, grads_and_vars: Pairs) -> tuple[list[Any], list[Any]]:
        """Returns the gradients that are there, unscaled by now, and their variables."""
        gradients, variables = unzip(pair for pair in grads_and_vars if pair[0] is not None)
        where = self._optimizer.get_name()
        return self._scaler.unscale_for_step(gradients, variables, where, _COMPUTE), variables

    def _apply(self, pairs: Any, of_caller: Mapping[str, Any], **keywords: Any) -> Any:
        """Calls the inner optimizer, with those keywords that it takes and all of the caller's."""
        method = self._inner_method("apply_gradients")
        with inner_call():
            return method(pairs, **accepted(method, **keywords), **of_caller)

    def _inner_method(self, name: str) -> Callable[..., Any]:
        if name in self._methods:
            return functools.partial(self._methods[name], self._optimizer)
        return getattr(self._optimizer, name)  # type: ignore[no-any-return]


@contextlib.contextmanager
def _conditions_for(variables: Iterable[Any]) -> Iterator[None]:
    """Makes conditions in TF1's form if variables are references, which functions cannot hold.

    Meanwhile, conditions that other threads make have this form, too.
    """
    has_references = any(variable.dtype._is_ref_dtype for variable in variables)
    if not has_references or not _v1.control_flow_v2_enabled():
        yield
        return
    _v1.disable_control_flow_v2()
    try:
        yield
    finally:
        _v1.enable_control_flow_v2()


def _is_accumulated(pair: tuple[Any, Any]) -> bool:
    """Tells whether a gradient comes from an accumulator, which counts the steps itself."""
    value = finite.values_of(pair[0])
    return tf.is_tensor(value) and value.op.type in GRADIENT_ACCUMULATORS


wrap = LossScaleOptimizer  #: the adapter's entry, for ``amp_tf.LossScaleOptimizer``
