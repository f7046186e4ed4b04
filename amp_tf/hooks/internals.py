"""Lists what amp_tf replaces inside TensorFlow and Keras: names that a new version may take away.

A row has names that amp_tf replaces; the hooks take them from here. :mod:`amp_tf.hooks.reads` has
the rows of those that it only reads. A test compares what all rooms import with both, and another
one asks the installed libraries for each name and says which one is gone. docs/compatibility.md
shows the table.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from amp_tf.hooks.patches import Patches

# Names that a library has once its import is nearly done: Keras imports TensorFlow while it is half
# done itself, and the other way round.
_LAST_NAMES = {"tensorflow": "compat", "keras": "Model", "tf_keras": "Model"}


def is_imported(library: str) -> bool:
    """Tells whether the import of TensorFlow, Keras or tf_keras is done.

    Keras on another backend, which runs no graph of TensorFlow's, does not count.
    """
    module: Any = sys.modules.get(library)
    is_done = hasattr(module, _LAST_NAMES[library])
    return is_done and (library != "keras" or module.backend.backend() == "tensorflow")


@dataclasses.dataclass(frozen=True)
class Internal:
    """Names inside of a library.

    Attributes:
        names: ``modules: names``, separated by spaces, ``; `` and more of the kind;
            ``Class.method`` for what a class has.
        why: completes "amp_tf needs them to …".
        without: completes "without them …", as the user sees it.
        since: the first of the supported versions of the library that has them.
    """

    names: str
    why: str
    without: str
    since: str = ""

    def patch(self, patches: Patches, ours: Callable[..., Any]) -> bool:
        """Replaces the names in the libraries that are imported by now.

        ``ours`` is called with the original and the arguments. Returns whether a name was replaced
        now. Raises an AttributeError that says which name is gone.
        """
        # All are found before one is replaced: a row is patched as a whole or not at all.
        found = []
        for home, name in self.each():
            if is_imported(home.partition(".")[0]):
                found.append(self._find(home, name))
        are_new = [patches.put(owner, attribute, ours) for owner, attribute in found]
        return any(are_new)

    def surround(self, patches: Patches, hook: Callable[[Any], Any]) -> None:
        """As :meth:`patch`, for a hook that passes all arguments on.

        It gets the call as a ``functools.partial``, and makes it by ``call()``.
        """

        def ours(original: Any, /, *args: Any, **kwargs: Any) -> Any:
            return hook(functools.partial(original, *args, **kwargs))

        self.patch(patches, ours)

    def each(self) -> Iterator[tuple[str, str]]:
        """Yields each name, behind a module that has it."""
        for group in self.names.split("; "):
            homes, _, names = group.partition(": ")
            yield from itertools.product(homes.split(), names.split())

    def _find(self, home: str, name: str) -> tuple[Any, str]:
        """Returns the owner of a name and its attribute there.

        Raises an AttributeError that says which name is gone.
        """
        *path, attribute = name.split(".")
        try:
            # To import it would wait, with the switch's lock, for a thread that imports it now, and
            # which waits for that lock at the end.
            owner: Any = sys.modules.get(home) or importlib.import_module(home)
            for part in path:
                owner = getattr(owner, part)
            getattr(owner, attribute)
        except (ImportError, AttributeError):
            raise AttributeError(f"{home} has no {name} in this version: {self.without}") from None
        return owner, attribute


IN_FLOAT32 = "graphs stay in float32, after one warning"
XLA_IN_FLOAT32 = "functions compiled by XLA stay in float32, after one warning"
_FIRST_BATCHES = "know Python code from which Keras takes batches"
_NARROW_BATCHES = "functions that such code calls may be computed in 16 bit, after one warning"
SCOPES_FAIL = "`amp_tf.scope` raises an error"
BY_SCOPES = "layers are found by their name scopes"
_UNTIMED = "`amp-tf time` and reports have no times of these steps"
SUMS_IN_FLOAT32 = "gradients are summed in float32, after one warning"
NOT_COMPARED = "workers with different settings train on, after one warning"
_UNSCALED = "losses are not scaled automatically, after one warning"
NOT_SKIPPED = "training with a wrapped optimizer fails"
NO_COMPARISON = "`amp-tf compare` and `tune` end with an error"

# The graph optimizer.

C_API = Internal(
    "libtensorflow_cc.so.2: TF_NewStatus TF_DeleteStatus TF_GetCode "
    "TF_GetNodesToPreserveListSize TF_GetNodesToPreserveList TF_NewGraphProperties "
    "TF_DeleteGraphProperties TF_InferStatically TF_GetOutputPropertiesListSize "
    "TF_GetOutputPropertiesList",
    "read the fetches and the static shapes of a graph",
    IN_FLOAT32,
)
TFLITE_CONVERTER = Internal(
    "tensorflow.lite.python.convert: convert",
    "leave graphs alone while TFLite's converter holds Python's lock",
    "a conversion waits a minute for each graph",
)

# Functions compiled by XLA.

MAKE_FUNCTION = Internal(
    "tensorflow.python.eager.polymorphic_function.atomic_function: from_func_graph",
    "see each function when it is created",
    XLA_IN_FLOAT32,
)
DESCRIBE_GRAPH = Internal(
    "tensorflow.python.framework.ops: Graph._as_graph_def",
    "export functions for XLA as the program wrote them",
    XLA_IN_FLOAT32,
)
DESCRIBE_FUNCTION = Internal(
    "tensorflow.python.eager.context: Context.get_function_def",
    "show functions for XLA as the program wrote them",
    XLA_IN_FLOAT32,
)
ADD_FUNCTION = Internal(
    "tensorflow.python.eager.context: Context.add_function_def",
    "take functions back that were shown as the program wrote them",
    XLA_IN_FLOAT32,
)

# Input pipelines.

TRACE_FOR_DATASET = Internal(
    "tensorflow.python.data.ops.structured_function: StructuredFunctionWrapper.__init__",
    "tell functions of pipelines from others by more than their names",
    "those with unusual names may be computed in 16 bit, after one warning",
)
CALL_FUNCTION = Internal(
    "tensorflow.python.eager.polymorphic_function.atomic_function: AtomicFunction.call_flat",
    "keep functions in float32 that Python code of a pipeline calls, and all once amp_tf is off",
    "they may be computed in 16 bit, after one warning",
)
CALL_PYTHON = Internal(
    "tensorflow.python.ops.script_ops: FuncRegistry.__call__",
    "know Python code of a pipeline",
    "functions that it calls may be computed in 16 bit, after one warning",
)
KERAS_BATCHES = Internal(
    "keras.src.trainers.data_adapters.generator_data_adapter: peek_and_restore; "
    "keras.src.trainers.data_adapters.py_dataset_adapter: PyDatasetAdapter.get_tf_dataset "
    "get_index; tf_keras.src.engine.data_adapter: GeneratorDataAdapter.__init__; "
    "tf_keras.src.utils.data_utils: get_index next_sample",
    _FIRST_BATCHES,
    _NARROW_BATCHES,
)

# Scopes of precision.

FINISH_OP = Internal(
    "tensorflow.python.framework.ops: Graph._create_op_helper",
    "mark the ops of a scope",
    SCOPES_FAIL,
)
OPS_FOR_AN_OP = Internal(
    "tensorflow.python.framework.ops: Graph._original_op",
    "give gradients in a graph, and vectorized ops, their op's scope",
    SCOPES_FAIL,
)
RECORD_GRADIENT = Internal(
    "tensorflow.python.eager.execute: record_gradient",
    "remember an op's scope for its gradient by a tape",
    SCOPES_FAIL,
)
TAPE_GRADIENT = Internal(
    "tensorflow.python.eager.backprop: _gradient_function",
    "give gradients by a tape their op's scope",
    SCOPES_FAIL,
)
RECORD_OPERATION = Internal(
    "tensorflow.python.eager.record: record_operation",
    "give custom gradients the scope and the layer of their function",
    SCOPES_FAIL,
)
REPLICA_THREADS = Internal(
    "tensorflow.python.distribute.mirrored_run: _call_for_each_replica "
    "_MirroredReplicaContext._merge_call",
    "hand a scope to the threads of replicas",
    SCOPES_FAIL,
)
TRACES = Internal(
    "tensorflow.python.eager.polymorphic_function.function_context: make_function_context",
    "trace functions for each scope in which they are called, and anew under other settings",
    SCOPES_FAIL,
)

# Layers, policies and the times of steps.

KERAS_SCOPES = Internal(
    "keras: name_scope.__enter__",
    "record the paths of layers",
    BY_SCOPES,
)
TF_KERAS_SCOPES = Internal(
    "tf_keras.src.engine.base_layer: Layer._name_scope",
    "record the paths of layers",
    BY_SCOPES,
)
POLICIES = Internal(
    "keras tf_keras: mixed_precision.Policy.__init__",
    "warn of Keras' own mixed precision",
    "there is no such warning",
)
STEP_BEGINS = Internal(
    "keras tf_keras: callbacks.CallbackList.on_train_batch_begin "
    "callbacks.CallbackList.on_test_batch_begin callbacks.CallbackList.on_predict_batch_begin",
    "time steps of fit, evaluate and predict",
    _UNTIMED,
)
STEP_ENDS = Internal(
    "keras tf_keras: callbacks.CallbackList.on_train_batch_end "
    "callbacks.CallbackList.on_test_batch_end callbacks.CallbackList.on_predict_batch_end",
    "time steps of fit, evaluate and predict",
    _UNTIMED,
)
STEPS_ALONE = Internal(
    "keras tf_keras: Model.test_on_batch Model.predict_on_batch",
    "time single steps",
    _UNTIMED,
)
TRAIN_ALONE = Internal(
    "keras tf_keras: Model.train_on_batch",
    "time single steps, and wrap the optimizer of a model that was compiled before",
    f"{_UNTIMED}; losses are not scaled automatically, after one warning",
)
CALL_TF_FUNCTION = Internal(
    "tensorflow.python.eager.polymorphic_function.polymorphic_function: Function.__call__",
    "time calls, and compare them with float32",
    f"{_UNTIMED}; `amp-tf compare` ends with an error",
)
RUN_SESSION = Internal(
    "tensorflow.python.client.session: BaseSession.run",
    "time runs of sessions",
    _UNTIMED,
)

# Sums over replicas.

SUM_IN_REPLICA = Internal(
    "tensorflow.python.distribute.distribute_lib: ReplicaContextBase.all_reduce",
    "sum gradients in 16 bit",
    SUMS_IN_FLOAT32,
)
SUM_ACROSS = Internal(
    "tensorflow.python.distribute.distribute_lib: StrategyExtendedV2.batch_reduce_to",
    "sum gradients in 16 bit",
    SUMS_IN_FLOAT32,
)

# The workers of a job.

CONNECT_WORKERS = Internal(
    "tensorflow.python.distribute.collective_all_reduce_strategy: "
    "CollectiveAllReduceExtended._initialize_multi_worker",
    "compare the settings of workers",
    NOT_COMPARED,
)
STEPS_OF_WORKERS = Internal(
    "tensorflow.python.distribute.distribute_lib: StrategyBase.run",
    "compare the settings of workers",
    NOT_COMPARED,
)

# Loss scaling.

MODELS_COMPILE = Internal(
    "keras tf_keras tf_keras.src.engine.training_v1: Model.compile",
    "wrap the optimizer of a model",
    _UNSCALED,
)
MODELS_FIT = Internal(
    "keras tf_keras: Model.fit",
    "log the loss scale, and wrap the optimizer of a model that was compiled before",
    _UNSCALED,
)
KERAS_STEPS = Internal(
    "keras: optimizers.Optimizer.apply_gradients optimizers.Optimizer.apply "
    "optimizers.LossScaleOptimizer.apply; tf_keras: optimizers.Optimizer.apply_gradients "
    "optimizers.legacy.Optimizer.apply_gradients",
    "warn of loops that scale no loss",
    "there is no such warning",
)
TF_KERAS_WRAPPED_STEPS = Internal(
    "tf_keras.src.mixed_precision.loss_scale_optimizer: LossScaleOptimizer.apply_gradients "
    "LossScaleOptimizerV3.apply_gradients",
    "know that tf_keras' own wrappers scale the loss",
    "their programs are warned that nothing scales it",
)
TF1_SESSION_CLOSES = Internal(
    "tensorflow.python.client.session: BaseSession.close",
    "report the loss scale of a session",
    _UNSCALED,
)
TF1_OPTIMIZER = Internal(
    "tensorflow: compat.v1.train.Optimizer.__init__",
    "wrap TF1's optimizers",
    _UNSCALED,
)
TF1_GRADIENTS = Internal(
    "tensorflow: compat.v1.train.Optimizer.compute_gradients "
    "compat.v1.train.Optimizer.apply_gradients",
    "wrap TF1's optimizers",
    _UNSCALED,
)
TF1_WRAPPER = Internal(
    "tensorflow: compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer.__init__",
    "leave optimizers alone that the program wrapped itself",
    _UNSCALED,
)
TF1_SAVER = Internal(
    "tensorflow: compat.v1.train.Saver.restore",
    "restore checkpoints of a run without loss scaling",
    _UNSCALED,
)
TF1_SAVES = Internal(
    "tensorflow: compat.v1.train.Saver.save",
    "save a session that has not initialized the loss scale",
    _UNSCALED,
)
RUN_FUNCTION = Internal(
    "tensorflow.python.eager.polymorphic_function.concrete_function: ConcreteFunction.__call__",
    "warn of gradients that were taken before amp_tf was on",
    "there is no such warning",
)
RUN_FETCHES = Internal(
    "tensorflow.python.client.session: _FetchHandler.__init__",
    "know what a session runs, and warn of gradients that were taken before amp_tf was on",
    "there is no such warning",
)
RUN_NAMES = Internal(
    "tensorflow.python.client.session: BaseSession._make_callable_from_options",
    "know what a session runs, and warn of gradients that were taken before amp_tf was on",
    "there is no such warning",
)
GRADIENTS_BY_TAPE = Internal(
    "tensorflow.python.eager.backprop: GradientTape.gradient",
    "warn of loops that scale no loss, compare gradients with float32, and sum them in 16 bit",
    "there is no such warning, sums are in float32; `amp-tf compare` ends with an error",
)
GRADIENTS_BY_GRAPH = Internal(
    "tensorflow.python.ops.gradients_util: _GradientsHelper",
    "warn of loops that scale no loss, compare gradients with float32, and sum them in 16 bit",
    "there is no such warning, sums are in float32; `amp-tf compare` ends with an error",
)
WRITE_VARIABLES = Internal(
    "tensorflow.python.ops.gen_resource_variable_ops: assign_variable_op assign_add_variable_op "
    "assign_sub_variable_op resource_scatter_add resource_scatter_sub resource_scatter_update; "
    "tensorflow.python.ops.gen_state_ops: assign assign_add assign_sub scatter_add scatter_sub",
    "warn of loops that scale no loss",
    "there is no such warning",
)
