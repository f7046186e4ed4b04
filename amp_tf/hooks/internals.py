"""Lists what amp_tf touches inside TensorFlow and Keras: names that a new version may take away.

A row has names of one module that amp_tf replaces, or that it reads although no public API promises
them. The hooks take what they replace from these rows. A test compares what all rooms import with
them, and another one asks the installed libraries for each name and says which one is gone.
docs/compatibility.md shows the table.
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


def rows() -> Iterator[Internal]:
    """Yields all rows, in their order."""
    for value in (*globals().values(), *READ):
        if isinstance(value, Internal):
            yield value


_IN_FLOAT32 = "graphs stay in float32, after one warning"
_XLA_IN_FLOAT32 = "functions compiled by XLA stay in float32, after one warning"
_FIRST_BATCHES = "know Python code from which Keras takes batches"
_NARROW_BATCHES = "functions that such code calls may be computed in 16 bit, after one warning"
_SCOPES_FAIL = "`amp_tf.scope` raises an error"
_BY_SCOPES = "layers are found by their name scopes"
_UNTIMED = "`amp-tf time` and reports have no times of these steps"
_SUMS_IN_FLOAT32 = "gradients are summed in float32, after one warning"
_NOT_COMPARED = "workers with different settings train on, after one warning"
_UNSCALED = "losses are not scaled automatically, after one warning"
_NOT_SKIPPED = "training with a wrapped optimizer fails"
_NO_COMPARISON = "`amp-tf compare` and `tune` end with an error"

# The graph optimizer.

C_API = Internal(
    "libtensorflow_cc.so.2: TF_NewStatus TF_DeleteStatus TF_GetCode "
    "TF_GetNodesToPreserveListSize TF_GetNodesToPreserveList TF_NewGraphProperties "
    "TF_DeleteGraphProperties TF_InferStatically TF_GetOutputPropertiesListSize "
    "TF_GetOutputPropertiesList",
    "read the fetches and the static shapes of a graph",
    _IN_FLOAT32,
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
    _XLA_IN_FLOAT32,
)
DESCRIBE_GRAPH = Internal(
    "tensorflow.python.framework.ops: Graph._as_graph_def",
    "export functions for XLA as the program wrote them",
    _XLA_IN_FLOAT32,
)
DESCRIBE_FUNCTION = Internal(
    "tensorflow.python.eager.context: Context.get_function_def",
    "show functions for XLA as the program wrote them",
    _XLA_IN_FLOAT32,
)
ADD_FUNCTION = Internal(
    "tensorflow.python.eager.context: Context.add_function_def",
    "take functions back that were shown as the program wrote them",
    _XLA_IN_FLOAT32,
)

# Input pipelines.

TRACE_FOR_DATASET = Internal(
    "tensorflow.python.data.ops.structured_function: StructuredFunctionWrapper.__init__",
    "tell functions of pipelines from others by more than their names",
    "those with unusual names may be computed in 16 bit, after one warning",
)
CALL_FUNCTION = Internal(
    "tensorflow.python.eager.polymorphic_function.atomic_function: AtomicFunction.call_flat",
    "keep functions in float32 that Python code of a pipeline calls",
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
    _SCOPES_FAIL,
)
OPS_FOR_AN_OP = Internal(
    "tensorflow.python.framework.ops: Graph._original_op",
    "give gradients in a graph, and vectorized ops, their op's scope",
    _SCOPES_FAIL,
)
RECORD_GRADIENT = Internal(
    "tensorflow.python.eager.execute: record_gradient",
    "remember an op's scope for its gradient by a tape",
    _SCOPES_FAIL,
)
TAPE_GRADIENT = Internal(
    "tensorflow.python.eager.backprop: _gradient_function",
    "give gradients by a tape their op's scope",
    _SCOPES_FAIL,
)
RECORD_OPERATION = Internal(
    "tensorflow.python.eager.record: record_operation",
    "give custom gradients the scope and the layer of their function",
    _SCOPES_FAIL,
)
REPLICA_THREADS = Internal(
    "tensorflow.python.distribute.mirrored_run: _call_for_each_replica "
    "_MirroredReplicaContext._merge_call",
    "hand a scope to the threads of replicas",
    _SCOPES_FAIL,
)
TRACES = Internal(
    "tensorflow.python.eager.polymorphic_function.function_context: make_function_context",
    "trace functions for each scope in which they are called, and anew once amp_tf is on",
    _SCOPES_FAIL,
)

# Layers, policies and the times of steps.

KERAS_SCOPES = Internal(
    "keras: name_scope.__enter__",
    "record the paths of layers",
    _BY_SCOPES,
)
TF_KERAS_SCOPES = Internal(
    "tf_keras.src.engine.base_layer: Layer._name_scope",
    "record the paths of layers",
    _BY_SCOPES,
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
    _SUMS_IN_FLOAT32,
)
SUM_ACROSS = Internal(
    "tensorflow.python.distribute.distribute_lib: StrategyExtendedV2.batch_reduce_to",
    "sum gradients in 16 bit",
    _SUMS_IN_FLOAT32,
)

# The workers of a job.

CONNECT_WORKERS = Internal(
    "tensorflow.python.distribute.collective_all_reduce_strategy: "
    "CollectiveAllReduceExtended._initialize_multi_worker",
    "compare the settings of workers",
    _NOT_COMPARED,
)
STEPS_OF_WORKERS = Internal(
    "tensorflow.python.distribute.distribute_lib: StrategyBase.run",
    "compare the settings of workers",
    _NOT_COMPARED,
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

# Names that amp_tf reads, and does not replace.
READ = (
    # The graph optimizer.
    Internal(
        "tensorflow.core.grappler.costs.op_performance_data_pb2: OpInfo",
        "read static shapes",
        _IN_FLOAT32,
    ),
    Internal(
        "tensorflow.python.client.pywrap_tf_session: TF_LoadPluggableDeviceLibrary",
        "register its optimizer before the program chooses its devices",
        _IN_FLOAT32,
    ),
    Internal(
        "tensorflow.python.eager.context: context context_safe Context._initialized "
        "Context.has_function Context.list_function_names",
        "look up the functions that TensorFlow has",
        _XLA_IN_FLOAT32,
    ),
    # Functions compiled by XLA.
    Internal(
        "tensorflow.python.eager.polymorphic_function.atomic_function: CallOptions "
        "AtomicFunction._bound_context AtomicFunction._cached_definition "
        "AtomicFunction._cached_graph AtomicFunction._children; "
        "tensorflow.python.eager.context: Context.remove_function; "
        "tensorflow.python.eager.polymorphic_function.function_type_utils: derive_from_graph",
        "give a function another definition, and copy functions that it calls",
        _XLA_IN_FLOAT32,
    ),
    Internal(
        "tensorflow.python.framework.function_def_to_graph: function_def_to_graph "
        "function_def_to_graph_def",
        "infer the shapes of functions",
        "functions for XLA without a trace stay in float32, and reports have no sizes of them",
    ),
    Internal(
        "tensorflow.python.framework.importer: import_graph_def_for_function",
        "infer the shapes of SavedModels",
        "`amp-tf rewrite` and `explain` fail under auto",
    ),
    # Input pipelines.
    Internal(
        "tensorflow.python.data.ops.dataset_autograph: _general_purpose_scan",
        "tell loops over datasets from functions of pipelines",
        "such loops stay in float32",
    ),
    Internal(
        "tensorflow.python.eager.polymorphic_function.attributes: TF_DATA_FUNCTION",
        "tell functions of tf.data from others",
        "input pipelines may be computed in 16 bit",
    ),
    # Scopes of precision.
    Internal(
        "tensorflow.python.framework.ops: Operation._set_attr; "
        "tensorflow.python.pywrap_tfe: TFE_Py_RegisterGradientFunction",
        "mark the ops of a scope, and their gradients by a tape",
        _SCOPES_FAIL,
    ),
    # Layers, policies and the times of steps.
    Internal(
        "keras.src.backend.common.global_state: get_global_attribute; "
        "keras.src.backend.common.name_scope: current_path",
        "record the paths of layers",
        _BY_SCOPES,
    ),
    # Sums over replicas.
    Internal(
        "tensorflow.python.distribute.distribute_lib: StrategyExtendedV2._local_results "
        "StrategyExtendedV2._container_strategy",
        "sum gradients in 16 bit",
        "tf_keras' and TF1's training under a strategy fails with `AMP_TF_ALLREDUCE`",
    ),
    Internal(
        "tensorflow.python.framework.ops: Graph._functions",
        "know gradients that a called function takes",
        "no gradient is summed in 16 bit, after one warning",
    ),
    Internal(
        "tensorflow.python.distribute.mirrored_strategy: MirroredExtended "
        "MirroredExtended._cross_device_ops",
        "know which strategies sum over replicas, and how",
        _SUMS_IN_FLOAT32,
    ),
    # The workers of a job.
    Internal(
        "tensorflow.python.eager.context: Context.set_config_key_value "
        "Context.get_config_key_value Context.coordination_service "
        "Context._collective_ops_server_def",
        "compare the settings of workers",
        _NOT_COMPARED,
    ),
    # Loss scaling.
    Internal(
        "tensorflow.python.ops.resource_variable_ops: BaseResourceVariable._is_initialized_op",
        "save a session that has not initialized the loss scale",
        "programs that initialize only their own variables save nothing, after one warning",
    ),
    Internal(
        "tensorflow.python.training.saver: Saver._var_list",
        "restore checkpoints of a run without loss scaling",
        "TF1's programs cannot restore them, after one warning",
    ),
    Internal(
        "tensorflow.python.ops.variables: Variable._save_slice_info Variable.SaveSliceInfo",
        "restore partitioned variables from checkpoints of a run without loss scaling",
        "TF1's programs cannot restore them, after one warning",
    ),
    Internal(
        "tensorflow.python.ops.ref_variable: RefVariable._ref; tensorflow: DType._is_ref_dtype",
        "warn of loops that scale no loss",
        "there is no such warning",
    ),
    Internal(
        "tensorflow.python.framework.ops: Operation._original_op",
        "warn of gradients that were taken before amp_tf was on",
        "there is no such warning",
    ),
    Internal(
        "tensorflow.python.ops.control_flow_v2_func_graphs: ControlFlowFuncGraph",
        "count a step in a branch or loop with the losses around it",
        _NOT_SKIPPED,
    ),
    Internal(
        "tensorflow.python.framework.ops: Graph._variable_creator_stack",
        "create variables of loss scaling in any trace of a function",
        "losses are not scaled automatically, after one warning; wrapped optimizers fail",
    ),
    Internal(
        "tensorflow.python.ops.control_flow_util: GraphOrParentsInXlaContext",
        "choose the cheapest test of gradients under XLA",
        _NOT_SKIPPED,
    ),
    Internal(
        "tensorflow: __internal__.distribute.strategy_supports_no_merge_call",
        "skip a step on all replicas alike",
        _NOT_SKIPPED,
    ),
    Internal(
        "tensorflow: __internal__.tracking.DelegatingTrackableMixin "
        "__internal__.tracking.AutoTrackable "
        "__internal__.tracking.AutoTrackable._maybe_initialize_trackable "
        "__internal__.tracking.AutoTrackable._track_trackable "
        "__internal__.tracking.AutoTrackable._unconditional_checkpoint_dependencies "
        "__internal__.tracking.AutoTrackable._unconditional_dependency_names",
        "save the loss scale in checkpoints, or leave it out",
        "optimizers of Keras cannot be wrapped",
    ),
    Internal(
        "keras: optimizers.Optimizer._trainable_variables "
        "optimizers.Optimizer._trainable_variables_indices optimizers.Optimizer._var_key "
        "optimizers.Optimizer._variables optimizers.Optimizer._distribution_strategy; "
        "tf_keras: optimizers.Optimizer.aggregate_gradients optimizers.legacy.Optimizer._name "
        "optimizers.legacy.Optimizer._aggregate_gradients "
        "optimizers.legacy.Optimizer._create_all_weights",
        "hold back the inner optimizer's step",
        _NOT_SKIPPED,
    ),
    Internal(
        "keras: optimizers.Optimizer._iterations",
        "return the count of accumulated steps, too",
        "applied steps alone are counted",
        since="3.5",
    ),
    Internal(
        "keras: optimizers.Optimizer._backend_apply_gradients "
        "optimizers.Optimizer._all_reduce_sum_gradients",
        "make one condition for all replicas",
        "accumulation and averages fail under MirroredStrategy",
        since="3.1",
    ),
    Internal(
        "tf_keras.src.mixed_precision.loss_scale_optimizer: _DynamicLossScaleState "
        "_DynamicLossScaleState._add_weight _raise_if_strategy_unsupported "
        "LossScaleOptimizer._optimizer LossScaleOptimizerV3._optimizer "
        "LossScaleOptimizer._loss_scale LossScaleOptimizer._is_wrapped_by_loss_scale_optimizer "
        "LossScaleOptimizerV3._is_wrapped_by_loss_scale_optimizer",
        "make wrappers that tf_keras takes for its own",
        "optimizers of tf_keras cannot be wrapped",
    ),
    Internal(
        "tf_keras.src.optimizers.utils: filter_empty_gradients",
        "leave out variables without a gradient",
        _NOT_SKIPPED,
    ),
    Internal(
        "tensorflow: compat.v1.mixed_precision.LossScale._add_weight "
        "compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer._optimizer",
        "make wrappers that TensorFlow takes for its own",
        "optimizers of TF1 cannot be wrapped",
    ),
    # Ops, kernels and files.
    Internal(
        "tensorflow.python.framework.op_def_registry: get; "
        "tensorflow.python.framework.kernels: get_registered_kernels_for_op",
        "know the types of each op's inputs and results, and its 16-bit kernels",
        "nothing is converted",
    ),
    Internal(
        "tensorflow.python.framework.dtypes: as_dtype",
        "name types in messages",
        _IN_FLOAT32,
    ),
    Internal(
        "tensorflow.python.util._pywrap_kernel_registry: TryFindKernelClass",
        "know kernels that only raise an error",
        "ops that may have them stay in float32",
    ),
    Internal(
        "tensorflow.python.checkpoint.checkpoint: object_metadata",
        "find the variables of a checkpoint",
        "`amp-tf rewrite` fails for 16-bit weights and for float16",
    ),
    # Tools.
    Internal(
        "tensorflow.python.grappler.tf_optimizer: OptimizeGraph; "
        "tensorflow.python.grappler.item: Item Item.GetOpProperties",
        "compare the graph that TensorFlow's optimizers make, by its shapes",
        _NO_COMPARISON,
    ),
    Internal(
        "tensorflow.python.ops.handle_data_util: get_resource_handle_data; "
        "tensorflow.python.framework.ops: EagerTensor._handle_data",
        "know the types of variables",
        _NO_COMPARISON,
    ),
    Internal(
        "tensorflow: Operation._get_control_flow_context",
        "know where data comes from",
        _NO_COMPARISON,
    ),
    Internal(
        "tensorflow.python.eager.context: eager_mode",
        "compare results of TF1's programs",
        _NO_COMPARISON,
    ),
    Internal(
        "tensorflow: __internal__.nest.map_structure_up_to",
        "compare functions that take iterators",
        _NO_COMPARISON,
    ),
    Internal(
        "tensorflow.python.eager.polymorphic_function.polymorphic_function: "
        "Function._jit_compile Function._list_all_concrete_functions",
        "compare and time functions as they are compiled",
        f"{_NO_COMPARISON}, and `time` does so, too",
    ),
    Internal(
        "tensorflow.python.client.session: BaseSession._do_run",
        "compare runs of sessions",
        _NO_COMPARISON,
    ),
    Internal(
        "keras tf_keras: Model.make_train_function Model.make_test_function "
        "Model.make_predict_function",
        "compare steps of fit, evaluate and predict",
        _NO_COMPARISON,
    ),
    Internal(
        "keras: Model._call_has_training_arg; tf_keras: Model._expects_training_arg",
        "train the model that is compared",
        _NO_COMPARISON,
    ),
    Internal(
        "keras: optimizers.LossScaleOptimizer.scale_loss optimizers.Optimizer.scale_loss; "
        "tf_keras.src.mixed_precision.loss_scale_optimizer: LossScaleOptimizer.get_scaled_loss "
        "LossScaleOptimizerV3.get_scaled_loss",
        "know that the program scales its loss",
        _NO_COMPARISON,
    ),
    Internal(
        "keras.src.utils.naming tf_keras.backend: reset_uids",
        "give layers the same names in each run of `tune`",
        "patterns that it finds may match nothing",
    ),
    Internal(
        "tensorflow.python.framework.op_def_library: apply_op",
        "make the ops that `amp-tf calibrate` measures",
        "it ends with an error",
    ),
)
