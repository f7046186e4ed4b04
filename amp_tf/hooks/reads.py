"""Lists what amp_tf reads inside TensorFlow and Keras although no public API promises it.

Nothing imports these rows but the test and the page of :mod:`amp_tf.hooks.internals`.
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_tf.hooks import internals
from amp_tf.hooks.internals import (
    BY_SCOPES,
    IN_FLOAT32,
    NO_COMPARISON,
    NOT_COMPARED,
    NOT_SKIPPED,
    SCOPES_FAIL,
    SUMS_IN_FLOAT32,
    XLA_IN_FLOAT32,
    Internal,
)

READ = (
    # The graph optimizer.
    Internal(
        "tensorflow.core.grappler.costs.op_performance_data_pb2: OpInfo",
        "read static shapes",
        IN_FLOAT32,
    ),
    Internal(
        "tensorflow.python.client.pywrap_tf_session: TF_LoadPluggableDeviceLibrary",
        "register its optimizer before the program chooses its devices",
        IN_FLOAT32,
    ),
    Internal(
        "tensorflow.python.eager.context: context context_safe Context._initialized "
        "Context.has_function Context.list_function_names",
        "look up the functions that TensorFlow has",
        XLA_IN_FLOAT32,
    ),
    # Functions compiled by XLA.
    Internal(
        "tensorflow.python.eager.polymorphic_function.atomic_function: CallOptions "
        "AtomicFunction._bound_context AtomicFunction._cached_definition "
        "AtomicFunction._cached_graph AtomicFunction._children; "
        "tensorflow.python.eager.context: Context.remove_function; "
        "tensorflow.python.eager.polymorphic_function.function_type_utils: derive_from_graph",
        "give a function another definition, and copy functions that it calls",
        XLA_IN_FLOAT32,
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
        SCOPES_FAIL,
    ),
    # Layers, policies and the times of steps.
    Internal(
        "keras.src.backend.common.global_state: get_global_attribute; "
        "keras.src.backend.common.name_scope: current_path",
        "record the paths of layers",
        BY_SCOPES,
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
        SUMS_IN_FLOAT32,
    ),
    # The workers of a job.
    Internal(
        "tensorflow.python.eager.context: Context.set_config_key_value "
        "Context.get_config_key_value Context.coordination_service "
        "Context._collective_ops_server_def",
        "compare the settings of workers",
        NOT_COMPARED,
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
        "warn of gradients that were taken before amp_tf was on, and know vectorized ones",
        "there is no such warning, and vectorized gradients are summed in float32",
    ),
    Internal(
        "tensorflow.python.ops.control_flow_v2_func_graphs: ControlFlowFuncGraph",
        "count a step in a branch or loop with the losses around it",
        NOT_SKIPPED,
    ),
    Internal(
        "tensorflow.python.framework.ops: Graph._variable_creator_stack",
        "create variables of loss scaling in any trace of a function",
        "losses are not scaled automatically, after one warning; wrapped optimizers fail",
    ),
    Internal(
        "tensorflow.python.ops.control_flow_util: GraphOrParentsInXlaContext",
        "choose the cheapest test of gradients under XLA",
        NOT_SKIPPED,
    ),
    Internal(
        "tensorflow: __internal__.distribute.strategy_supports_no_merge_call",
        "skip a step on all replicas alike",
        NOT_SKIPPED,
    ),
    Internal(
        "tf_keras: __internal__.backend.track_variable",
        "let sessions of tf_keras under a strategy initialize the loss scale",
        "TF1's optimizers fail there in float16",
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
        NOT_SKIPPED,
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
        NOT_SKIPPED,
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
        IN_FLOAT32,
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
        NO_COMPARISON,
    ),
    Internal(
        "tensorflow.python.ops.handle_data_util: get_resource_handle_data; "
        "tensorflow.python.framework.ops: EagerTensor._handle_data",
        "know the types of variables",
        NO_COMPARISON,
    ),
    Internal(
        "tensorflow: Operation._get_control_flow_context",
        "know where data comes from",
        NO_COMPARISON,
    ),
    Internal(
        "tensorflow.python.eager.context: eager_mode",
        "compare results of TF1's programs",
        NO_COMPARISON,
    ),
    Internal(
        "tensorflow: __internal__.nest.map_structure_up_to",
        "compare functions that take iterators",
        NO_COMPARISON,
    ),
    Internal(
        "tensorflow.python.eager.polymorphic_function.polymorphic_function: "
        "Function._jit_compile Function._list_all_concrete_functions",
        "compare and time functions as they are compiled",
        f"{NO_COMPARISON}, and `time` does so, too",
    ),
    Internal(
        "tensorflow.python.client.session: BaseSession._do_run",
        "compare runs of sessions",
        NO_COMPARISON,
    ),
    Internal(
        "keras tf_keras: Model.make_train_function Model.make_test_function "
        "Model.make_predict_function",
        "compare steps of fit, evaluate and predict",
        NO_COMPARISON,
    ),
    Internal(
        "keras: Model._call_has_training_arg; tf_keras: Model._expects_training_arg",
        "train the model that is compared",
        NO_COMPARISON,
    ),
    Internal(
        "keras: optimizers.LossScaleOptimizer.scale_loss optimizers.Optimizer.scale_loss; "
        "tf_keras.src.mixed_precision.loss_scale_optimizer: LossScaleOptimizer.get_scaled_loss "
        "LossScaleOptimizerV3.get_scaled_loss",
        "know that the program scales its loss",
        NO_COMPARISON,
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


def rows() -> Iterator[Internal]:
    """Yields all rows, in their order: first those of names that amp_tf replaces."""
    for value in (*vars(internals).values(), *READ):
        if isinstance(value, Internal):
            yield value
