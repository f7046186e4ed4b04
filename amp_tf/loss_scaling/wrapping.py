"""Parts that the public classes share: methods, delegation to the inner optimizer, and files."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import tensorflow as tf

from amp_tf.loss_scaling.ledger import Status
from amp_tf.loss_scaling.scaler import Scaler
from amp_tf.loss_scaling.schedule import DynamicScale, Schedule

_Method = TypeVar("_Method", bound=Callable[..., Any])
_Wrapper = TypeVar("_Wrapper", bound=type)
#: the methods that every ``minimize`` calls, in one of the libraries or another
_OF_MINIMIZE = ("compute_gradients", "_compute_gradients", "apply_gradients")


def without_autograph(method: _Method) -> _Method:
    """Marks a method that a traced step calls: AutoGraph leaves it, and all that it calls, alone.

    Otherwise it would rewrite them, and warn where it cannot.
    """
    marked: _Method = tf.autograph.experimental.do_not_convert(method)
    return marked


class StateMethods:
    """Methods that show and set the state of a :class:`Scaler`."""

    _scaler: Scaler

    @property
    def loss_scale(self) -> Any:
        """The scale now, a float32 variable.

        Assigning a number takes effect at the next step, also in traced ones; in a TF1 graph in the
        default session. A number outside the range of scales, 2**-126 to 2**127, is a ConfigError.
        """
        return self._scaler.memory.scale

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        self._scaler.memory.assign_scale(value)

    @property
    def schedule(self) -> Schedule:
        """The settings of the scale; fixed, because traced steps hold them."""
        return self._scaler.schedule

    @property
    def dynamic(self) -> bool:
        """Tells whether the scale moves."""
        return isinstance(self.schedule, DynamicScale)

    def status(self, session: Any = None) -> Status:
        """The state as Python numbers, in a TF1 graph by its session.

        Waits for the device: not for traced steps.
        """
        return self._scaler.memory.status(
            self.schedule, self._scaler.nonfinite_variables.names(), session
        )

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        """Called by TensorFlow when it saves.

        A SavedModel of a training step holds all variables that the step writes; a checkpoint holds
        those that the library tracks.
        """
        children: dict[str, Any] = super()._trackable_children(save_type, **kwargs)  # type: ignore[misc]
        if save_type != "savedmodel":
            return children
        memory = self._scaler.memory
        flags = self._scaler.nonfinite_variables.flags
        written = dict(children)
        for place, variable in enumerate((memory.scale, *memory.counters, memory.last_skip, flags)):
            if variable is not None:
                written[f"loss_scale_{place}"] = variable
        return written


class ScalingMethods(StateMethods):
    """Methods that scale and unscale, in place of those of the library's class."""

    inner_optimizer: Any

    def __eq__(self, other: object) -> bool:
        # A program may name the optimizer that it gave to `compile`, as Checkpoint compares it.
        return other is self or other is self.inner_optimizer

    def __hash__(self) -> int:
        return hash(self.inner_optimizer)

    def __dir__(self) -> Iterable[str]:
        # Keras' saving walks dir(): the inner optimizer's state is saved once, in this one's place.
        return sorted(set(super().__dir__()) - {"inner_optimizer", "_optimizer", "_trackable"})

    @property
    def minimize(self) -> Any:
        """The library's method, or that of the inner optimizer's own class.

        Either one takes the gradients of the scaled loss from this wrapper, which makes its step.
        """
        of_library = super().minimize  # type: ignore[misc]
        inner = self.inner_optimizer
        if type(inner).minimize is of_library.__func__:
            return of_library
        return _scaling(self, inner).minimize

    @without_autograph
    def scale_loss(self, loss: Any) -> Any:
        """Returns the loss times the scale, which the tape, or ``tf.gradients``, differentiates.

        It is a floating-point tensor of any shape, or a nest of them; the result is float32
        (float64 where it was).
        """
        return self._scaler.scale(loss)

    @without_autograph
    def get_scaled_loss(self, loss: Any) -> Any:
        """Scales a loss for loops that call :meth:`get_unscaled_gradients`, as with tf_keras.

        It may be a callable without arguments that returns one; the result is then a callable too.
        """
        if callable(loss):
            return lambda: self._scaler.scale(loss(), divides_in_step=False)
        return self._scaler.scale(loss, divides_in_step=False)

    @without_autograph
    def get_unscaled_gradients(self, grads: Iterable[Any]) -> list[Any]:
        """Divides tensors, ``tf.IndexedSlices`` or ``None`` by the scale.

        ``apply_gradients`` takes the results unchanged.
        """
        return self._scaler.unscale_for_loop(grads)


def _scaling(wrapper: Any, inner: Any) -> Any:
    """Makes an object that is the inner optimizer but for the methods that ``minimize`` calls.

    It has the optimizer's class and attributes, so it may be ``self`` in the user's methods.
    """
    own: Any = type(inner)
    methods = {}
    for name in _OF_MINIMIZE:
        if hasattr(type(wrapper), name):
            methods[name] = getattr(wrapper, name)
    made = object.__new__(type(own)(own.__name__, (own,), methods))
    object.__setattr__(made, "__dict__", vars(inner))
    return made


def untrack(trackable: Any, *names: str) -> None:
    """Takes children of an object out of TensorFlow's checkpoints, those that are there."""
    trackable._maybe_initialize_trackable()
    for name in names:
        trackable._unconditional_dependency_names.pop(name, None)
    tracked = trackable._unconditional_checkpoint_dependencies
    tracked[:] = [reference for reference in tracked if reference.name not in names]


def delegating(*names: str) -> Callable[[_Wrapper], _Wrapper]:
    """Makes methods of a wrapper those of its inner optimizer.

    The wrapper inherits them from the library's class, where they would find no state.
    """

    def decorate(wrapper: _Wrapper) -> _Wrapper:
        for name in names:
            inner_method = operator.attrgetter(f"inner_optimizer.{name}")
            setattr(wrapper, name, property(inner_method))
        return wrapper

    return decorate


def accepted(method: Callable[..., Any], **keywords: Any) -> dict[str, Any]:
    """Selects the keyword arguments that a method takes.

    A user's class may leave out some of its base class's, or reorder them.
    """
    parameters = inspect.signature(method).parameters
    kinds = [parameter.kind for parameter in parameters.values()]
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return keywords
    return {name: value for name, value in keywords.items() if name in parameters}


class InnerSettings:
    """Delegates attributes that the wrapper lacks, such as momentum, to the inner optimizer.

    So are private ones: programs read ``_learning_rate``, which may be a schedule.
    """

    _inner = "inner_optimizer"  #: the attribute that holds that optimizer
    #: its settings alone, although the library's wrapper has such attributes
    _of_inner: frozenset[str] = frozenset()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self._inner not in self.__dict__:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(self.__dict__[self._inner], name)

    def __setattr__(self, name: str, value: Any) -> None:
        is_own = name in self.__dict__ or hasattr(type(self), name)
        inner = None
        if "_scaler" in self.__dict__:  # else it is still being made
            inner = self.__dict__.get(self._inner)
        if inner is not None and (name in self._of_inner or (not is_own and hasattr(inner, name))):
            setattr(inner, name, value)
        else:
            super().__setattr__(name, value)


class SavedScale:
    """The part of a ``.keras`` or ``.weights.h5`` file that holds the scale and its counters.

    Mixed in front of the library's ``losses.Loss``, because Keras saves children of only four known
    kinds. It is a child of its own, so that a float32 run can load the optimizer's group.
    """

    def __init__(self, variables: Mapping[str, Any]) -> None:
        super().__init__(name="loss_scale_state")  # type: ignore[call-arg]
        self._variables = variables

    def save_own_variables(self, store: Any) -> None:
        """Called by the library when it saves."""
        for name, variable in self._variables.items():
            store[name] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Called by the library when it loads.

        A file of a run without loss scaling has no entries here.
        """
        for name, variable in self._variables.items():
            if name in store.keys():  # noqa: SIM118 - the store has keys() but is no mapping
                variable.assign(store[name][()])
