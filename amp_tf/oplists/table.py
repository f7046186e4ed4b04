"""The op table: one row an op, with its list on each kind of device and the reason why.

Source: ``tensorflow/core/grappler/optimizers/auto_mixed_precision_lists.h`` of TensorFlow 2.21,
class ``AutoMixedPrecisionListsFp16`` in CUDA mode for the ``cuda`` table (CUDA 9.1, cuDNN 8.0 and
newer, which every supported TensorFlow requires) and ``AutoMixedPrecisionListsMkl`` for the ``cpu``
table. tests/oplists/test_table.py compares the rows with the header that the installed TensorFlow
ships; a few rows are amp_tf's own.
"""

from __future__ import annotations

import dataclasses
import itertools

CUDA = "cuda"
CPU = "cpu"
TABLES = (CUDA, CPU)

ALLOW = "allow"
INFER = "infer"
DENY = "deny"
CLEAR = "clear"


class Trait(frozenset[str]):
    """A set of ops that have something in common.

    Args:
        ops: their names, with blanks between them.
        more: sets of further ops.
    """

    def __new__(cls, ops: str, *more: frozenset[str]) -> Trait:
        return super().__new__(cls, (*ops.split(), *itertools.chain.from_iterable(more)))


@dataclasses.dataclass(frozen=True)
class OpRow:
    """One op on one table.

    Attributes:
        op: its name.
        table: ``cuda`` or ``cpu``.
        op_list: ``allow``, ``infer``, ``deny`` or ``clear``.
        why: the reason, as words that complete "because it …".
    """

    op: str
    table: str
    op_list: str
    why: str


def _rows(op_list: str, why: str, ops: str, tables: tuple[str, ...] = TABLES) -> tuple[OpRow, ...]:
    rows = []
    for table in tables:
        for op in ops.split():
            rows.append(OpRow(op, table, op_list, why))
    return tuple(rows)


_PRODUCT = (
    "is a matrix product or convolution: the hardware runs it several times faster in 16 bit, "
    "summing in float32"
)
_ELEMENTWISE = "is safe in 16 bit unless its input comes from a numerically dangerous op"
_NORMALISES = "keeps its statistics in float32 (type attribute U) while the data may be 16 bit"
_REDUCES = "sums many values, which loses small ones in 16 bit"
_RANGE = "leaves the range of float16 for ordinary inputs"
_MOVES = "moves, selects or compares values without arithmetic, so 16 bit changes nothing"
_SIGN = "takes a sign, a bound or a rounding, which 16 bit represents exactly enough"
_LOOP = "carries values through control flow unchanged"
_LIST = "stores tensors in a list unchanged"
_FUSED = "is a matrix product or convolution that TensorFlow's remapper fused with what follows"

#: Products that TensorFlow's remapper makes. They carry their types twice (T and TArgs), and their
#: kernels abort the process where the two differ.
FUSED_PRODUCTS = Trait("_FusedMatMul _FusedConv2D _FusedConv3D _FusedDepthwiseConv2dNative")

#: Ops that read a tensor from a TensorList. Values flow to them from its writers.
TENSOR_LIST_READERS = Trait(
    """TensorListConcat TensorListConcatV2 TensorListGather TensorListGetItem TensorListPopBack
    TensorListStack"""
)
#: Ops that write a tensor into a TensorList.
TENSOR_LIST_WRITERS = Trait(
    """TensorListFromTensor TensorListPushBack TensorListPushBackBatch TensorListScatter
    TensorListScatterIntoExistingList TensorListScatterV2 TensorListSetItem TensorListSplit"""
)

ROWS: tuple[OpRow, ...] = (
    *_rows(
        ALLOW,
        _PRODUCT,
        """Conv2D Conv2DBackpropFilter Conv2DBackpropInput Conv3D Conv3DBackpropFilterV2
        Conv3DBackpropInputV2 DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter
        DepthwiseConv2dNativeBackpropInput MatMul BatchMatMul BatchMatMulV2 Einsum""",
    ),
    *_rows(
        ALLOW,
        _PRODUCT,
        "Conv3DBackpropFilter Conv3DBackpropInput FusedConv2DBiasActivation FusedSparseConvGpuV2",
        (CUDA,),
    ),
    *_rows(ALLOW, _PRODUCT, "FusedPadConv2D", (CPU,)),
    *_rows(
        ALLOW,
        "is a recurrent layer made of matrix products",
        """BlockLSTM BlockLSTMV2 BlockLSTMGrad BlockLSTMGradV2 CudnnRNN CudnnRNNBackprop
        CudnnRNNBackpropV2 CudnnRNNBackpropV3 CudnnRNNV2 CudnnRNNV3 GRUBlockCell GRUBlockCellGrad
        LSTMBlockCell LSTMBlockCellGrad""",
        (CUDA,),
    ),
    *_rows(
        ALLOW,
        "is a fused GPU layer that TensorFlow's lists name",
        "Mha MhaV2 Tmlp TmlpV2 TmlpV3 Pmlp FastUnsortedSegmentMax VoxelMax",
        (CUDA,),
    ),
    *_rows(ALLOW, _FUSED, " ".join(sorted(FUSED_PRODUCTS))),
    *_rows(
        INFER,
        _ELEMENTWISE,
        """Add AddN AddV2 BiasAdd BiasAddGrad BiasAddV1 Elu EluGrad Erf Erfc FloorDiv Inv LeakyRelu
        LeakyReluGrad Log Log1p LogSoftmax Mul Prod RealDiv Reciprocal Selu SeluGrad Sigmoid
        SigmoidGrad Softmax Softplus SoftplusGrad Softsign SoftsignGrad Sqrt Sub Tanh TanhGrad""",
    ),
    *_rows(
        INFER,
        "is a Sigmoid times its input, which TensorFlow's remapper made one op",
        "_MklSwish",
        (CPU,),
    ),
    *_rows(INFER, _ELEMENTWISE, "AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad"),
    *_rows(
        INFER,
        _NORMALISES,
        "FusedBatchNormV2 FusedBatchNormGradV2 FusedBatchNormV3 FusedBatchNormGradV3 "
        "_FusedBatchNormEx",
    ),
    *_rows(INFER, _ELEMENTWISE, "Rsqrt Square SquaredDifference", (CPU,)),
    *_rows(
        INFER,
        "sums in float32 inside its kernel, and bfloat16 has float32's range",
        "Mean Sum",
        (CPU,),
    ),
    *_rows(DENY, _REDUCES, "Mean Sum", (CUDA,)),
    *_rows(DENY, _REDUCES, "L2Loss"),
    *_rows(DENY, _RANGE, "Exp Expm1 Pow"),
    *_rows(
        DENY,
        "takes exponentials and a logarithm of their sum; the loss needs float32",
        "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits",
    ),
    *_rows(DENY, "writes checkpoints, which stay float32", "SaveV2"),
    *_rows(
        CLEAR,
        _MOVES,
        """ArgMax ArgMin BatchToSpace BatchToSpaceND BroadcastTo Concat ConcatV2 DepthToSpace
        DynamicPartition DynamicStitch EnsureShape Equal ExpandDims Fill Gather GatherNd GatherV2
        Greater GreaterEqual Identity IdentityN Less LessEqual MirrorPad NotEqual OnesLike Pack
        Pad PadV2 PreventGradient Rank Reshape ResizeNearestNeighbor Reverse ReverseSequence
        ReverseV2 Select SelectV2 Shape ShapeN Slice Snapshot SpaceToBatch SpaceToBatchND
        SpaceToDepth Split SplitV Squeeze StopGradient StridedSlice StridedSliceGrad Tile TopK
        TopKV2 Transpose Unpack Where ZerosLike""",
    ),
    *_rows(CLEAR, _MOVES, "OneHot Size", (CUDA,)),
    *_rows(
        CLEAR,
        "adds each value to few places, in bfloat16's full range",
        "ResizeBilinear ScatterNd",
        (CPU,),
    ),
    *_rows(
        CLEAR,
        _SIGN,
        """Abs Ceil CheckNumerics ClipByValue Floor IsFinite IsInf IsNan Max MaxPool MaxPool3D
        MaxPool3DGrad MaxPoolGrad MaxPoolGradGrad MaxPoolGradGradV2 MaxPoolGradV2 MaxPoolV2
        Maximum Min Minimum MirrorPadGrad Neg Relu Relu6 Relu6Grad ReluGrad
        ResizeNearestNeighborGrad Round Sign""",
    ),
    *_rows(CLEAR, _SIGN, "MaxPool3DGradGrad", (CUDA,)),
    *_rows(CLEAR, _LOOP, "Enter Exit Merge NextIteration Switch"),
    *_rows(CLEAR, _LOOP, "StatelessWhile While", (CPU,)),
    *_rows(
        CLEAR,
        _LIST,
        " ".join(sorted(TENSOR_LIST_READERS | TENSOR_LIST_WRITERS | {"TensorListConcatLists"})),
    ),
)
PRODUCTS = frozenset(row.op for row in ROWS if row.op_list == ALLOW)  #: what gains from 16 bit

#: Ops that are replaced by a successor with more type attributes, and the attributes that it adds.
SUCCESSORS: dict[str, tuple[str, str]] = {
    "FusedBatchNorm": ("FusedBatchNormV2", "U"),
    "FusedBatchNormGrad": ("FusedBatchNormGradV2", "U"),
}
SUCCESSOR_OPS = frozenset(successor for successor, _ in SUCCESSORS.values())

#: Ops that make a list of no values.
TENSOR_LIST_MAKERS = Trait("EmptyTensorList TensorListReserve")
#: Ops that give one element of a list, with the port of the element.
TENSOR_LIST_ELEMENTS = {"TensorListGetItem": 0, "TensorListPopBack": 1}
#: Ops that add one element to a list, with the number of the input that holds it.
TENSOR_LIST_PUSHES = {"TensorListPushBack": 1, "TensorListSetItem": 2}
#: Ops that ask for the shape of what they read, and for no value.
SHAPES = Trait("Rank Shape ShapeN")
#: Ops with which loops and branches store values for their gradients.
KEEPING = Trait(
    "OptionalFromValue StackPushV2 TensorArrayScatterV3 TensorArrayWriteV3", TENSOR_LIST_WRITERS
)
#: Ops behind which a TensorList may have readers or writers outside the graph.
TENSOR_LIST_BOUNDARIES = Trait(
    """OptionalFromValue OptionalGetValue PartitionedCall Placeholder StatefulPartitionedCall _Arg
    _Retval"""
)
#: Ops whose definition does not list every type that they have a kernel for. TensorFlow's own
#: remapper makes _FusedConv2D nodes of bfloat16 although the definition lacks it; for these the
#: kernels alone decide.
KERNELS_DECIDE = Trait("_FusedConv2D")
#: Ops that hold a value of their type.
CONSTANTS = Trait("Const HostConst")
#: Ops that TensorFlow cannot run in float16 although nothing says so (tensorflow issue 25977),
#: constants, and ops whose reader elsewhere has a type of its own.
NEVER_FORCED = Trait("OptionalFromValue OptionalGetValue SoftmaxCrossEntropyWithLogits", CONSTANTS)
#: Ops on no list that give values of their inputs, moved or chosen.
CARRIERS = Trait(
    """CheckNumerics CheckNumericsV2 ExtractImagePatches ExtractVolumePatches MatrixBandPart
    MatrixDiagPartV3 MatrixDiagV3 MatrixSetDiagV3 MaxPoolWithArgmax NthElement
    ParallelDynamicStitch PlaceholderWithDefault RaggedTensorToTensor Roll ScatterNd SparseToDense
    TensorScatterUpdate"""
)
#: Ops that give the least or greatest float32 number by themselves: for classes sampled by
#: accident, and for empty segments.
EXTREME_SOURCES = Trait("ComputeAccidentalHits UnsortedSegmentMax UnsortedSegmentMin")
#: Ops of the clear list that add values up in the type that they have: the gradient of a gather,
#: for one.
SUMS_IN_ITS_TYPE = Trait("ScatterNd")
#: Ops whose CPU kernel of Eigen adds many values in its own type: the mean of four times 30,000 is
#: infinite in float16, and that of 1,024 numbers between 0 and 1 is 1 in bfloat16. oneDNN's kernel,
#: which is for bfloat16 alone, adds in float32.
SUMS_IN_EIGEN = Trait("AvgPool")
#: Ops whose bfloat16 kernel on CPUs keeps a sum of many values in bfloat16, unless oneDNN computes
#: them with a product.
SUMS_IN_BFLOAT16 = Trait("BiasAddGrad")
#: Ops that write a value, or its sum with the old one, to a variable or to some rows of one.
STORING = Trait(
    """Assign AssignAdd AssignSub AssignVariableOp AssignAddVariableOp AssignSubVariableOp
    ResourceScatterAdd ResourceScatterNdAdd ResourceScatterNdSub ResourceScatterNdUpdate
    ResourceScatterSub ResourceScatterUpdate ResourceStridedSliceAssign ScatterAdd ScatterNdAdd
    ScatterNdSub ScatterNdUpdate ScatterSub ScatterUpdate StridedSliceAssign"""
)
#: Ops that write a value to a variable as it is.
WHOLE_WRITES = Trait("Assign AssignVariableOp")
#: Sums that a step may write to a variable.
UPDATED_BY = Trait("AddV2 Sub")
#: Ops with which a loop or a branch of graph nodes begins.
BEGINNINGS = Trait("Enter Switch")
#: Ops that add to a value or take from it.
ADDING = Trait("Add AddN AddV2 Sub")
#: Products of which some nodes sum nothing, with the op whose list these get.
JUDGED_AS = {"Einsum": "Mul"}
#: Ops that multiply or divide one value by another.
SCALING = Trait("Div DivNoNan Mul MulNoNan RealDiv")
#: Ops that give the difference of two values, or its square.
SUBTRACTING = Trait("SquaredDifference Sub")
#: Products that filter images, each channel by itself.
FILTERING = Trait("DepthwiseConv2dNative")
#: Logarithms, which show how far a value is from one.
LOGARITHMS = Trait("CumulativeLogsumexp Log Log1p LogMatrixDeterminant Xlog1py Xlogy")
#: Ops on no list whose result depends on how nearly singular a matrix is.
DECOMPOSING = Trait(
    """BandedTriangularSolve Cholesky CholeskyGrad Eig LogMatrixDeterminant Lu MatrixDeterminant
    MatrixInverse MatrixLogarithm MatrixSolve MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve
    Qr SelfAdjointEigV2 Svd TridiagonalSolve"""
)
#: Ops that add or average many values.
TOTALS = Trait("Mean Sum")
#: The ones that add, as lengths and distances do with few terms.
SUMMING = Trait("Sum")
#: Ops that average the values of each window.
WINDOWED = Trait("AvgPool AvgPool3D")
#: Ops whose result is never negative.
UNSIGNED = Trait("Abs Square SquaredDifference")
#: Ops that give the negative of a value.
NEGATING = Trait("Neg")
#: Ops that square a value, as a multiplication by itself does, too.
SQUARES = Trait("Square")
#: Ops that square a value or take another power of it.
POWERS = Trait("Pow", SQUARES)
#: Ops that take a root.
ROOTS = Trait("Rsqrt Sqrt")
#: Functions that magnify a rounding, by their argument or by an exponent.
STEEP_FUNCTIONS = Trait("Cosh Exp Expm1 Pow Sinh")
#: Inverses that are steep at the border of their arguments.
INVERSE_FUNCTIONS = Trait("Acos Acosh Asin Atanh")
#: Monotone functions with a bounded result.
BOUNDED_FUNCTIONS = Trait("ClipByValue Erf Erfc Sigmoid Softsign Tanh")
#: Ops whose result depends on the differences of their inputs alone.
SOFTMAXES = Trait("LogSoftmax Softmax")
#: Smooth functions, whose results of small arguments lie near one number: 1, 1/2, log 2, 1/n.
SMOOTH = Trait("Exp Softplus", BOUNDED_FUNCTIONS, SOFTMAXES)
#: Ops that may magnify a small change of their input.
MAGNIFYING = Trait(
    """Acos Acosh Asin Atanh CumulativeLogsumexp Div DivNoNan Exp Expm1 Inv Log Log1p
    LogMatrixDeterminant Pow RealDiv Reciprocal Rsqrt Sqrt Xdivy Xlog1py Xlogy"""
)
#: Ops of the infer list that keep the relative size of a rounding.
LINEAR = Trait("BiasAdd Mean Square Sum", ADDING, SCALING)
#: Ops that give the reciprocal of a root.
RECIPROCAL_ROOTS = Trait("Rsqrt")
#: Ops that give a reciprocal, so that multiplying by their result divides.
RECIPROCALS = Trait("Inv Reciprocal", RECIPROCAL_ROOTS)
#: Ops whose result leaves float16's range for values that are in it; a quotient does not if its
#: divisor is a constant.
RANGING = Trait("Inv Prod RealDiv Reciprocal Square")
#: Ops on no list whose result, like a quotient, leaves float16's range.
RANGING_GRADIENTS = Trait("InvGrad ReciprocalGrad RsqrtGrad SqrtGrad")
#: Ops whose 16-bit kernels lose more than 8 units in the last place
#: (tests/oplists/test_kernel_accuracy.py measures it). They compute exp(x) - 1 in 16 bit, which is
#: zero for a small x, and log(1 + exp(-x)), which is zero for a large x.
INACCURATE = Trait("Elu LogSoftmax Selu")
#: Ops that subtract the mean of their values and divide by the deviation.
NORMALIZING = Trait("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 _FusedBatchNormEx")
#: Ops that kernels compute together with the product before them: its result is rounded once for
#: both.
FOLLOWING = Trait("BiasAdd BiasAddV1 LeakyRelu Relu Relu6")
#: Ops that XLA compiles in float32 alone. XLA registers its kernels when it first compiles, after
#: functions are rewritten, so a rewrite cannot look them up. A test compares the set with the
#: installed TensorFlow.
FLOAT32_ONLY_IN_XLA = Trait("MaxPoolGradGrad MaxPoolGradGradV2 MaxPool3DGradGrad")
#: Ops with inputs that only select among values of the others, with the numbers of these inputs.
MASKED = {
    Trait("LeakyReluGrad Relu6Grad ReluGrad"): (1,),
    Trait("MaxPool3DGrad MaxPoolGrad MaxPoolGradV2"): (0, 1),
}
#: Sources of reference variables. An Identity or Enter that reads one must keep its type.
REFERENCE_VARIABLES = Trait("Variable VariableV2")
#: The handles of resource variables.
VARIABLE_HANDLES = Trait("VarHandleOp")
#: Ops that bring values into a loop of graph nodes, take them out, and close its ring.
LOOP_ENTRIES = Trait("Enter RefEnter")
LOOP_EXITS = Trait("Exit RefExit")
LOOP_CLOSERS = Trait("NextIteration RefNextIteration")
#: Ops of which loops and branches of graph nodes are made.
CONTROL_FLOW = Trait("Enter Exit LoopCond Merge NextIteration Switch")
#: Ops that ask for a value's shape alone.
SHAPE_QUESTIONS = Trait("Rank Shape Size")
#: Ops that give one value in another type.
CASTS = Trait("Cast")
#: Ops that call one function, whatever their inputs are.
CALLS = Trait("PartitionedCall StatefulPartitionedCall")
#: Ops that give the largest or smallest of some values, and their gradients that compare their
#: first two inputs.
MAXIMA = Trait(
    """Max MaxPool MaxPool3D MaxPoolV2 Min SegmentMax SegmentMaxV2 SegmentMin SegmentMinV2
    UnsortedSegmentMax UnsortedSegmentMin"""
)
MAXIMA_GRADIENTS = Trait(
    "MaxPool3DGrad MaxPool3DGradGrad MaxPoolGrad MaxPoolGradGrad MaxPoolGradGradV2 MaxPoolGradV2"
)
#: Ops that compare their first two inputs. The gradients of maxima are or contain a comparison.
COMPARISONS = Trait("Equal Greater GreaterEqual Less LessEqual NotEqual")
COMPARING = COMPARISONS | MAXIMA_GRADIENTS
#: Ops that give the values of their first input unchanged: in another shape, or into a loop or a
#: branch.
UNCHANGED = Trait("BroadcastTo Enter ExpandDims Identity Reshape Squeeze Switch")
#: The same ops, and those at the end of a loop.
HANDING_ON = Trait("Exit", UNCHANGED)
#: Ops that read some rows of a table, and so take no longer for a larger one.
PICKING = Trait("Gather GatherNd GatherV2 StridedSlice")
#: Ops that give values of their inputs in another order or shape, joined, or in part.
ARRANGING = Trait(
    """BatchToSpace BatchToSpaceND Concat ConcatV2 DepthToSpace DynamicPartition DynamicStitch
    EnsureShape MirrorPad Pack Pad PadV2 PreventGradient ResizeNearestNeighbor Reverse
    ReverseSequence ReverseV2 Roll Slice Snapshot SpaceToBatch SpaceToBatchND SpaceToDepth Split
    SplitV StopGradient StridedSliceGrad Tile Transpose Unpack""",
    PICKING,
    UNCHANGED,
)
#: Ops whose every result is a value of their inputs, its magnitude, or a bound.
CHOOSING = Trait(
    """Abs ClipByValue Exit Maximum Merge Minimum NextIteration Relu Relu6 Select SelectV2 TopK
    TopKV2""",
    MAXIMA,
    ARRANGING,
)
#: Ops that only move, choose or multiply values.
KEEPING_SIZE = Trait("Exit Fill Merge Mul MulNoNan Neg NextIteration Select SelectV2", ARRANGING)
#: Ops through which the rounding of a matrix reaches its decomposition: moves, arithmetic, and
#: functions that magnify it, as kernels of Gaussian processes do.
BEFORE_DECOMPOSITIONS = Trait(
    "", LINEAR, MAGNIFYING, ROOTS, CASTS, CARRIERS, CHOOSING, KEEPING_SIZE
)
#: Convolutions whose filter may be scaled, and whether each of their output channels reads one
#: input channel alone.
SCALABLE = {"Conv2D": False, "DepthwiseConv2dNative": True}
#: Ops that add a bias or a residual.
BIAS_SUMS = Trait("Add AddN AddV2")
#: Ops that give a filter that is not scaled yet.
FILTER_SOURCES = Trait("_Arg Const Identity Placeholder ReadVariableOp")
#: Ops that read a variable, and may be moved before the loop in which they stand.
READ_OPS = Trait("ReadVariableOp")
#: Ops that take a resource and cannot write a variable of floats: they read one, pass a handle on,
#: or work on another kind of resource, which TensorFlow checks when they run.
HARMLESS = Trait(
    """Identity ResourceGather RngReadAndSkip StackPopV2 StackPushV2 TensorArrayGatherV3
    TensorArrayGradV3 TensorArrayReadV3 TensorArrayScatterV3 TensorArraySizeV3 TensorArrayWriteV3
    VarIsInitializedOp VariableShape""",
    CONTROL_FLOW,
    READ_OPS,
)
#: Ops that run Python code.
PYTHON = Trait("EagerPyFunc PyFunc PyFuncStateless")
#: Ops that read numbers from text, bytes, tables or Python.
DECODING = Trait(
    """DatasetToSingleElement DecodeCSV DecodePaddedRaw DecodeRaw LookupTableFindV2 ParseExample
    ParseExampleV2 ParseSequenceExample ParseSequenceExampleV2 ParseSingleExample
    ParseSingleSequenceExample ParseTensor StringToNumber""",
    PYTHON,
)
#: Ops that start at once if they have no inputs; waiting for them takes no time.
WITHOUT_WAITING = Trait("Const Placeholder VarHandleOp _Arg")
#: Ops that give a program its next data each time they run, and ops that give a graph its inputs.
DATA_SOURCES = Trait(
    """IteratorGetNext IteratorGetNextSync QueueDequeueManyV2 QueueDequeueUpToV2 QueueDequeueV2
    ReaderReadUpToV2 ReaderReadV2"""
)
GIVEN = Trait("OptionalGetValue Placeholder PlaceholderWithDefault", DATA_SOURCES, DECODING)
#: Ops whose result depends on a value's absolute error, whatever its size: on its fraction, or as
#: an angle.
ABSOLUTE = Trait("Ceil Cos Floor FloorDiv FloorMod Mod Rint Round Sin Tan TruncateDiv TruncateMod")
#: Ops that multiply many values with each other.
LONG_PRODUCTS = Trait("Cumprod Prod")
#: Ops whose result has the relative error of their least exact input: products, quotients, and
#: gradients of activations.
MULTIPLIED = Trait(
    """EluGrad InvGrad LeakyReluGrad ReciprocalGrad RsqrtGrad SeluGrad SigmoidGrad SoftplusGrad
    SoftsignGrad SqrtGrad TanhGrad Xdivy""",
    SCALING,
)
#: Quotients.
DIVIDING = Trait("Div DivNoNan RealDiv Xdivy")
#: Ops that pass several values on unchanged.
IDENTITIES = Trait("IdentityN")
#: Ops whose result is bounded, normalized or a square, so that it does not show the size of an
#: offset.
ENDING_ORIGINS = Trait(
    "Atan Cos Erf Erfc LogSoftmax Sigmoid Sign Sin Softmax Softsign Square SquaredDifference Tanh "
    "_MklSwish",
    NORMALIZING,
)
#: Ops that pass their inputs, from the given one on, to the functions that they name, and return
#: the results of these.
HANDING_OVER = {
    **dict.fromkeys(Trait("StatelessWhile While", CALLS), 0),
    **dict.fromkeys(Trait("Case If StatelessCase StatelessIf"), 1),
}


def is_loop(op: str) -> bool:
    """Returns True if an op is a loop in functional form; its results are those of its body."""
    return HANDING_OVER.get(op) == 0 and op not in CALLS


#: Ops that read a resource variable, or a fact about it, and do not change it.
VARIABLE_READERS = Trait(
    "ReadVariableOp ResourceGather ResourceGatherNd VarIsInitializedOp VariableShape"
)
#: Ops that give the value of a resource variable, or rows of it.
VARIABLE_VALUES = Trait("ReadVariableOp ResourceGather ResourceGatherNd")
#: Ops that give a fact about a resource variable or end it, whatever its type.
VARIABLE_QUESTIONS = Trait("DestroyResourceOp DisableCopyOnRead VarIsInitializedOp VariableShape")
#: Ops that write a resource variable.
VARIABLE_WRITES = Trait("AssignVariableOp")
#: Ops that write a resource variable of the type that their attribute ``dtype`` has.
TYPED_WRITES = Trait("AssignAddVariableOp AssignSubVariableOp", VARIABLE_WRITES)
#: Ops that write a checkpoint, with their first input that is a value.
CHECKPOINT_WRITES = {"SaveV2": 3}
#: Ops that read a checkpoint.
CHECKPOINT_READS = Trait("RestoreV2")
#: Ops that give the mean of the gradients of several workers.
GRADIENT_ACCUMULATORS = Trait(
    """AccumulatorTakeGradient ResourceAccumulatorTakeGradient
    SparseAccumulatorTakeGradient"""
)
#: The op that passes values on and stops differentiation.
GRADIENT_GATE = "PreventGradient"
#: Ops whose inputs belong to a loop or a branch, but not their results.
WAYS_OUT = Trait("Exit Merge")
#: Ops that hold the condition of a loop.
LOOP_CONDITIONS = Trait("LoopCond")
#: Ops that join two conditions.
CONJUNCTIONS = Trait("LogicalAnd")
#: Ops that merge the initial value of a loop variable with that of an iteration.
LOOP_MERGES = Trait("Merge")
#: Comparisons that keep a counter on one side of a bound.
BOUNDED = Trait("Greater GreaterEqual Less LessEqual NotEqual")
#: Ops that compute counters and their bounds.
COUNTING = (
    BOUNDED
    | CONJUNCTIONS
    | CONSTANTS
    | HANDING_ON
    | Trait("Add AddV2 LoopCond Merge NextIteration Sub")
)
#: Ops whose results have the shape of each input.
ALIKE = Trait(
    """AddN Cast Enter Exit Identity Neg NextIteration Relu ReluGrad Sigmoid SigmoidGrad Softplus
    SoftplusGrad Sqrt Square Switch Tanh TanhGrad ZerosLike"""
)
#: Ops whose results have the broadcast shape of all inputs.
BROADCASTING = Trait("Add AddV2 Maximum Minimum Mul RealDiv SelectV2 SquaredDifference Sub")
#: Ops that concatenate their inputs.
JOINING = Trait("ConcatV2")
#: Ops that split a tensor into equal parts.
PARTING = Trait("Split")
#: Products of two matrices.
MATRIX_PRODUCT = Trait("MatMul")
#: Ops that give a tensor another shape.
RESHAPING = Trait("Reshape")
SQUEEZING = Trait("Squeeze")
#: Ops that add one value for each channel.
BIASES = Trait("BiasAdd")
#: Ops that folding replaces: a scale and a bias.
FOLDED_AWAY = ("Mul", "AddV2")
