"""Waits for the first training step of a program, has it compared, and ends the program.

What ``amp-tf compare`` asks of the program that it starts, and the answer, are files in one folder.

Keras: the first call of a model's train function is compared instead of run. ``fit`` and
``train_on_batch`` create that function and call it with an iterator, so the model is built, and the
batches are those of the training: shuffled, weighted and prepared.

``tf.function``: a function in whose trace gradients are computed trains, and its calls are batches.
The calls themselves run as usual. After the wanted number of calls, or when the program ends, the
function is compared with the variables' values of that moment: its results, and its updates of
variables.

A function that takes a dataset or an iterator is compared before its first call, which may be the
whole training, on one element of it for each run: one that loops over a dataset then runs one
iteration; one that asks an iterator for several elements gets the same element each time. So one
step is compared, not a loop of thousands.

TF1 sessions: runs that need gradients train, and what they are fed are batches. The runs themselves
go on as usual, except that they also fetch what their data sources produce. After the wanted number
of runs with the same fetches, or when the session closes or the program ends, they are compared.

A program that trains nothing by its end: what it ran forward is compared (``forward``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from amp_tf.config import AmpConfig
from amp_tf.errors import AmpError, GraphError
from amp_tf.hooks import notices, state
from amp_tf.hooks.patches import Patches
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.table import DATA_SOURCES
from amp_tf.precision import Precision
from amp_tf.reporting import files
from amp_tf.tools import train_functions
from amp_tf.tools.comparing.comparison import Comparison, Ranges
from amp_tf.tools.comparing.flattening import reached
from amp_tf.tools.comparing.forward import Forward
from amp_tf.tools.comparing.pipeline import compare, find_ranges
from amp_tf.tools.comparing.steps import SessionRuns
from amp_tf.tools.progress import on_stderr
from amp_tf.tools.train_functions import (
    Call,
    Repeated,
    as_function,
    as_step,
    generated,
    iterate,
    kept,
    steps_a_call,
)

_ONE_REPLICA = "the first replica's part of each batch was run, on one device"
_UNSCALED = (
    "{} does not scale its loss, so small gradients become zero in float16. First {}, then "
    "compare again."
)
_SCALE_IN_LOOP = "scale the loss with amp_tf.LossScaleOptimizer or amp_tf.LossScaler"
_SCALE_IN_MODEL = "take the gradients of self.optimizer.scale_loss(loss) in the model's train_step"
_SCALERS = {
    "keras": ("optimizers", "scale_loss"),
    "tf_keras": ("mixed_precision", "get_scaled_loss"),
}
_CLAIM, _ORDER, _ANSWER, _OF_FORWARD = "claim", "order.json", "answer.json", "forward.json"


@dataclasses.dataclass(frozen=True)
class CompareRequest:
    """What is to be compared, and how."""

    folder: Path  #: where the files lie
    config: AmpConfig  #: what to convert
    steps: int  #: how many batches at most
    nodes: str | None = None  #: a regular expression for further nodes to measure
    float32_only: bool = False  #: whether only tensors outside of float16's range are searched

    def compare(
        self, subject: Any, batches: Iterable[Any], hardware: Hardware, notes: Sequence[str] = ()
    ) -> Comparison | Ranges:
        """What is found for a step and its batches, as :func:`amp_tf.compare` takes them."""
        around: dict[str, Any] = {
            "hardware": hardware,
            "progress": on_stderr("amp-tf compare"),
            "notes": notes,
        }
        if self.float32_only:
            return find_ranges(subject, batches, self.config, steps=self.steps, **around)
        return compare(subject, batches, self.config, steps=self.steps, nodes=self.nodes, **around)

    def send(self) -> None:
        """Writes the request into its folder, from where :meth:`receive` reads it."""
        (self.folder / _ORDER).write_text(
            json.dumps(dataclasses.asdict(self) | {"folder": str(self.folder)})
        )

    @classmethod
    def receive(cls, folder: Path) -> CompareRequest:
        """Reads the request from its folder."""
        plain = json.loads((folder / _ORDER).read_text())
        return cls(**{**plain, "folder": folder, "config": AmpConfig(**plain["config"])})

    def answer(self, found: Mapping[str, Any], *, is_of_forward: bool = False) -> None:
        """Writes the answer, whole or not at all: ``comparison`` and its ``text``; or ``error``,
        why there is none.

        What was only run forward has an answer of its own, because another process of the program
        may train yet.
        """
        files.put(
            self.folder / (_OF_FORWARD if is_of_forward else _ANSWER), json.dumps(dict(found))
        )

    def read_answer(self, *, is_of_forward: bool = False) -> dict[str, Any] | None:
        """Reads the answer; ``None`` while there is none."""
        try:
            return dict(
                json.loads((self.folder / (_OF_FORWARD if is_of_forward else _ANSWER)).read_text())
            )
        except FileNotFoundError:
            return None


class Training:
    """The state that the patches of a comparison share, and these; nothing was compared while it
    ``is_awaited``.
    """

    def __init__(self, request: CompareRequest) -> None:
        self.request, self.is_awaited, self.patches = request, True, Patches()
        self._lock = threading.Lock()
        self.function: Any = None  #: the tf.function that trains, if there is one
        self.calls: list[Call] = []  #: its calls
        self.has_gradients = (
            False  #: whether any were asked for in a graph since the outermost call began
        )
        self.is_scaled = (
            False  #: whether a loss was scaled, by whatever scaler, since the comparison began
        )
        self.is_of_model = (
            False  #: whether the step that is compared is a model's own; amp_tf wraps its optimizer
        )
        self.forward = Forward(request.steps)
        self.others: dict[
            int, Any
        ] = {}  #: replacements for iterators of which elements were taken, by their ids
        #: by session, then by fetches and feeds; None for runs that do not train
        self.kinds: weakref.WeakKeyDictionary[Any, dict[Any, SessionRuns | None]] = (
            weakref.WeakKeyDictionary()
        )
        #: names of operations, by graph
        self.gradients: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()

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
            where, fix = (
                "amp-tf compare",
                "The program goes on as it was; interrupt it if that is not wanted",
            )
            notices.warn_once(
                "comparison.failed",
                f"nothing is compared ({why.rstrip('.')})",
                where=where,
                fix=fix,
            )

    def compare(self, subject: Any, batches: Sequence[Any], notes: Sequence[str] = ()) -> None:
        """Compares a step, writes the answer and ends the program by a SystemExit; does nothing the
        second time.
        """
        with self._lock:
            is_first, self.is_awaited = self.is_awaited, False
        if not is_first:
            return
        try:
            (self.request.folder / _CLAIM).touch(exist_ok=False)
        except FileExistsError:  # another process was the first one that trains
            return
        self.is_scaled = False
        found = self.request.compare(subject, batches, state.hardware(), notes)
        is_in_float16 = getattr(found, "precision", Precision.FLOAT16) is Precision.FLOAT16
        if (
            is_in_float16 and isinstance(subject, FunctionType) and not self.is_scaled
        ):  # of others amp_tf scales it
            remedy = _SCALE_IN_MODEL if self.is_of_model else _SCALE_IN_LOOP
            found = dataclasses.replace(found, headline=_UNSCALED.format(found.name, remedy))
        self.request.answer({"comparison": found.to_dict(), "text": found.for_command()})
        raise SystemExit(0 if found.is_healthy else 1)

    def compare_forward(self) -> None:
        """Compares what the program only ran forward, if there is any, and writes that answer."""
        step = self.forward.most_called()
        if step is not None and not (self.request.folder / _CLAIM).exists():
            subject, batches, notes = step
            found = self.request.compare(subject, batches, state.hardware(), notes)
            text = found.for_command()
            self.request.answer({"comparison": found.to_dict(), "text": text}, is_of_forward=True)


def install(training: Training, library: str) -> None:
    """Patches ``"tensorflow"``, ``"keras"`` or ``"tf_keras"``, which was imported."""
    if library == "tensorflow":
        from tensorflow.python.client import session
        from tensorflow.python.eager import backprop
        from tensorflow.python.eager.polymorphic_function import polymorphic_function
        from tensorflow.python.ops import gradients_util

        state.watch_collections()
        patches: list[tuple[Any, ...]] = [
            (polymorphic_function.Function, "__call__", _call, training),
            (backprop.GradientTape, "gradient", _gradient, training),
            (gradients_util, "_GradientsHelper", _gradient, training),
            (session.BaseSession, "_do_run", _run_session, training),
            (session.BaseSession, "close", _close_session, training),
        ]
    else:

        def watch(model: Any, owner: Any) -> Any:
            function = model.train_function
            return _Watched(function, model, training, owner) if training.is_awaited else function

        home, scale = _SCALERS[library]
        scaler = getattr(sys.modules[library], home).LossScaleOptimizer
        scalers = [scaler]
        scalers += (
            one for one in scaler.__subclasses__() if one.__module__.startswith(library)
        )  # tf_keras has two
        patches = [
            train_functions.patch(library, watch),
            *((one, scale, _scale, training) for one in scalers),
        ]
        if library == "keras":
            patches.append(
                (sys.modules[library].optimizers.Optimizer, scale, _scale_in_model, training)
            )
        patches += training.forward.patches(library)
    for patch in patches:
        training.patches.put(*patch)


def compare_at_exit(training: Training) -> None:
    """Compares a function or session that was called fewer times than wanted, as the program ends."""
    if training.is_awaited:
        with training.surviving(), contextlib.suppress(SystemExit):
            _compare_what_is_there(training)
            _compare_sessions(training)
            training.compare_forward()


class _Watched:
    """A model's train function whose first call is compared; if the comparison fails, it trains as
    it would have.
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

        def of_one_replica(value: Any) -> Any:
            return value.values[0] if isinstance(value, tf.distribute.DistributedValues) else value

        a_call = steps_a_call(self._model)
        wanted = (
            -(-self._training.request.steps // a_call) * a_call
        )  # whole calls, so that whole calls are left
        self._taken.extend(itertools.islice(iterator, wanted))
        own = [tf.nest.map_structure(of_one_replica, batch) for batch in self._taken]
        subject, batches, notes = as_step(self._model, own, self._owner)
        self._training.is_of_model = True
        strategy = self._model.distribute_strategy
        is_one = strategy.num_replicas_in_sync == 1
        # The program may be in the strategy's scope, but in no replica.
        with contextlib.nullcontext() if is_one else tf.distribute.ReplicaContext(strategy, 0):
            self._training.compare(subject, batches, notes if is_one else (*notes, _ONE_REPLICA))


def _given(training: Training, args: Any, kwargs: Any) -> Call:
    if not training.others:
        return args, kwargs
    given = {key: training.others.get(id(value), value) for key, value in kwargs.items()}
    return tuple(training.others.get(id(value), value) for value in args), given


def _call(training: Training, original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
    import tensorflow as tf

    args, kwargs = _given(training, args, kwargs)
    if not training.is_awaited or not tf.executing_eagerly():
        return original(self, *args, **kwargs)
    training.has_gradients = False
    if any(map(_is_stream, (*args, *kwargs.values()))):
        # It is compared on the first elements of its data before its first call, which may be an
        # epoch.
        with training.surviving():
            self.get_concrete_function(*args, **kwargs)
            if training.has_gradients:
                given = {id(value): value for value in (*args, *kwargs.values())}
                taken: dict[int, list[Any]] = {}
                try:
                    inner, calls = with_elements(
                        self.python_function, (args, kwargs), training.request.steps, taken
                    )
                finally:  # the program gets the elements back in any case
                    training.others = {
                        number: again(rows, given[number]) for number, rows in taken.items()
                    }
                _compare(training, self, inner, calls, "one element of its data a run")
        args, kwargs = _given(training, args, kwargs)
        return original(self, *args, **kwargs)
    result = original(self, *args, **kwargs)
    with training.surviving():
        if training.function is None and training.has_gradients:
            training.function = self
        if self is training.function:
            training.calls.append(kept((args, kwargs)))
            if len(training.calls) >= training.request.steps:
                _compare_what_is_there(training)
        elif training.function is None:
            training.forward.note(self, args, kwargs)
    return result


def _gradient(training: Training, original: Any, /, *args: Any, **kwargs: Any) -> Any:
    import tensorflow as tf

    training.has_gradients |= not tf.executing_eagerly()
    result = original(*args, **kwargs)
    if training.is_awaited:
        with training.surviving():
            for gradient in tf.nest.flatten(result):
                tensor = getattr(gradient, "values", gradient)
                if tf.is_symbolic_tensor(tensor) and not tensor.graph.building_function:
                    training.gradients.setdefault(tensor.graph, set()).add(tensor.op.name)
    return result


def _scale(training: Training, original: Any, scaler: Any, /, *args: Any, **kwargs: Any) -> Any:
    training.is_scaled = True
    return original(scaler, *args, **kwargs)


def _scale_in_model(
    training: Training, original: Any, optimizer: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """A bare optimizer's ``scale_loss``: of a model, amp_tf wraps it, and it scales then."""
    training.is_scaled |= training.is_of_model
    return original(optimizer, *args, **kwargs)


def _compare_what_is_there(training: Training) -> None:
    calls, training.calls = training.calls, []
    if calls:
        after = f"the variables as they are after {len(calls)} calls of it"
        _compare(training, training.function, training.function.python_function, calls, after)


def _compare(
    training: Training, function: Any, inner: Callable[..., Any], calls: Sequence[Call], how: str
) -> None:
    import tensorflow as tf

    from amp_tf.loss_scaling.calls import is_scaled_place

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def note() -> None:
        training.is_scaled |= is_scaled_place()

    def watched(*args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        note()
        return result

    name = str(getattr(function.python_function, "__name__", "function"))
    subject, batches = as_function(name, watched, calls, jit_compile=function._jit_compile)
    training.compare(subject, batches, (f"{name} was compared with {how}",))


def with_elements(
    function: Callable[..., Any], call: Call, limit: int, taken: dict[int, list[Any]]
) -> tuple[Callable[..., Any], list[Call]]:
    """A function of elements in place of one of datasets or iterators, and its calls, at most
    ``limit``.

    ``taken`` gets what was taken of each iterator, by its ``id``, also where an error is raised.
    Raises a GraphError where a dataset is empty.
    """
    import tensorflow as tf

    args, kwargs = call
    given: dict[int | str, Any] = dict((*enumerate(args), *kwargs.items()))
    rows: dict[int | str, list[Any]] = {}
    for key, value in given.items():
        if _is_stream(value):
            rows[key] = (
                [] if isinstance(value, tf.data.Dataset) else taken.setdefault(id(value), [])
            )
            rows[key].extend(itertools.islice(value, limit))
    if not all(rows.values()):
        what = "a dataset that the function gets is empty"
        fix = "Look at the data before they are handed over, with next(iter(dataset))"
        raise GraphError(what, where=getattr(function, "__name__", "function"), fix=fix)

    def with_streams(*args: Any, **kwargs: Any) -> Any:
        as_given = [Repeated(value) if key in rows else value for key, value in enumerate(args)]
        return function(
            *as_given,
            **{key: Repeated(kwargs[key]) if key in rows else kwargs[key] for key in kwargs},
        )

    def with_element(number: int) -> Call:
        row = {key: rows[key][number] if key in rows else value for key, value in given.items()}
        return tuple(row[place] for place in range(len(args))), {key: row[key] for key in kwargs}

    return with_streams, [with_element(number) for number in range(min(map(len, rows.values())))]


def again(taken: Sequence[Any], iterator: Any) -> Any:
    """An iterator that first returns the elements that were taken from another, and then the rest
    of that one.
    """
    whole = itertools.chain(taken, iterator)
    return iter(generated(lambda: whole, iterator.element_spec))


def _is_stream(value: Any) -> bool:
    import tensorflow as tf

    return isinstance(value, (tf.data.Dataset, tf.data.Iterator))


def _compare_sessions(training: Training, session: Any = None) -> None:
    """Compares the most frequent kind of training runs made so far, if there were any; of one
    session or of all.
    """
    known = list(training.kinds.values()) if session is None else [training.kinds.get(session, {})]
    found = [runs for kinds in known for runs in kinds.values() if runs and runs.batches]
    if not found:
        return
    runs = max(found, key=lambda runs: len(runs.batches))
    training.kinds.clear()  # frees sessions and batches; nothing is compared after this
    if runs.session.sess_str:
        fix = "Train in one process, without a target"
        raise GraphError("the session is one of a server", where="tf.compat.v1.Session", fix=fix)
    note = (
        f"{runs.name} was compared with the variables as they are after {len(runs.batches)} runs "
        "of it"
    )
    training.compare(runs, runs.batches, (note,))


def _run_session(
    training: Training,
    original: Any,
    session: Any,
    handle: Any,
    targets: Any,
    fetches: Any,
    feeds: Any,
    *rest: Any,
) -> Any:
    runs = None
    if (
        training.is_awaited
        and handle is None
        and not state.is_collecting()
        and training.gradients.get(session.graph)
    ):
        with training.surviving():
            runs = _runs_of(training, session, targets, fetches, [ref.deref() for ref in feeds])
    if runs is None:
        return original(session, handle, targets, fetches, feeds, *rest)
    results = original(session, handle, targets, [*fetches, *runs.given], feeds, *rest)
    with training.surviving():
        fed = [np.array(feeds[tensor.ref()]) for tensor in runs.fed]
        runs.batches.append((*fed, *results[len(fetches) :]))
        if len(runs.batches) >= training.request.steps:
            _compare_sessions(training, session)
    return results[: len(fetches)]


def _close_session(training: Training, original: Any, session: Any) -> None:
    if training.is_awaited and not state.is_collecting():
        with training.surviving():
            _compare_sessions(training, session)
    original(session)


def _runs_of(
    training: Training,
    session: Any,
    targets: Sequence[Any],
    fetches: Sequence[Any],
    fed: Sequence[Any],
) -> SessionRuns | None:
    kinds = training.kinds.setdefault(session, {})
    key = tuple(frozenset(each.name for each in wanted) for wanted in (targets, fetches, fed))
    if key not in kinds:
        names = {tensor.name for tensor in fed}

        def sources(operation: Any) -> list[Any]:
            return [
                *(given.op for given in operation.inputs if given.name not in names),
                *operation.control_inputs,
            ]

        needed = list(reached([*targets, *(tensor.op for tensor in fetches)], sources))
        trains = not training.gradients[session.graph].isdisjoint(
            operation.name for operation in needed
        )
        given = [
            tensor
            for operation in needed
            if operation.type in DATA_SOURCES
            for tensor in operation.outputs
        ]
        if trains:
            for tensor in given:  # they are fetched beside the program's own fetches, and fed
                if tensor.op._get_control_flow_context() is not None or tensor.dtype.name in (
                    "variant",
                    "resource",
                ):
                    raise GraphError(
                        f"its data come from {tensor.op.name!r}, in a branch or loop or as no "
                        "arrays "
                        f"({tensor.dtype.name})",
                        where="Session.run",
                        fix="Take the data outside of tf.cond and tf.while_loop, as dense tensors",
                    )
        runs = SessionRuns(session, list(fetches), list(targets), list(fed), given, needed)
        kinds[key] = runs if trains else None
    return kinds[key]
