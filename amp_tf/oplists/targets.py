"""The target of a rewrite: the device type that is converted, its precision, and the op lists.

``auto`` resolves here: float16 on GPUs of compute capability 7.0 and newer, bfloat16 on CPUs that
have it in hardware, and nothing elsewhere. On a machine with a GPU the CPU's nodes stay in float32
under ``auto``, as in TensorFlow's pass: they feed data or write logs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from amp_tf.config import LIST_NAMES, AmpConfig
from amp_tf.oplists.cost_tables import SHIPPED, CostTable
from amp_tf.oplists.hardware import MIN_COMPUTE_CAPABILITY, Hardware
from amp_tf.oplists.kernels import PLACEHOLDERS, ROUNDED
from amp_tf.oplists.op_names import registered_rows
from amp_tf.oplists.table import ALLOW, CPU, CUDA, DENY, FLOAT32_ONLY_IN_XLA, INFER, ROWS, OpRow
from amp_tf.precision import Precision

GPU_DEVICE = "GPU"
CPU_DEVICE = "CPU"

XLA_WIDENS = (
    "XLA:CPU widens bfloat16 operands to float32, so that 16 bit is not faster there; "
    "AMP_TF_PRECISION=bfloat16 converts anyway"
)  # measured: benchmarks/README.md, XLA on CPUs


@dataclasses.dataclass(frozen=True)
class OpLists:
    """The op lists of one table, as settings change them.

    Attributes:
        table: ``cuda`` or ``cpu``.
        list_of: op name to ``allow``, ``infer``, ``deny`` or ``clear``; ops on no list are absent.
        force_all: whether every op that can be 16 bit is painted (level ``UNSAFE_FORCE_ALL``).
    """

    table: str
    list_of: Mapping[str, str]
    force_all: bool = False

    def members(self, op_list: str) -> list[str]:
        """The ops of one list, sorted."""
        return sorted(op for op, name in self.list_of.items() if name == op_list)


@dataclasses.dataclass(frozen=True)
class Target:
    """The nodes to convert, and how.

    Attributes:
        device_type: of the nodes: ``"GPU"`` or ``"CPU"``.
        precision: the 16-bit type.
        lists: the op lists.
        adds_in_float32: whether a CPU's kernels of the 16-bit type keep sums in float32. oneDNN's
            and XLA's do; Eigen's, which run otherwise, do not.
        is_xla: whether XLA compiles the graph, and may leave out roundings between two types.
        runs_on_cpu: whether a CPU computes it, even if it is rewritten for a GPU.
    """

    device_type: str
    precision: Precision
    lists: OpLists
    adds_in_float32: bool = True
    is_xla: bool = False
    runs_on_cpu: bool = False

    @property
    def rounded(self) -> frozenset[str]:
        """Ops whose float32 kernels run, with operands and result rounded to 16 bit."""
        is_float16 = self.precision is Precision.FLOAT16
        if self.runs_on_cpu and (is_float16 or not self.adds_in_float32):
            return ROUNDED
        return frozenset()

    @property
    def runs_eigen(self) -> bool:
        """True if TensorFlow's own kernels of a CPU compute the 16-bit type."""
        return self.device_type == CPU_DEVICE and not self.adds_in_float32

    @property
    def without_kernel(self) -> frozenset[str]:
        """Ops whose 16-bit kernels are registered, but do not run on the target."""
        if self.runs_eigen:
            return PLACEHOLDERS
        return frozenset()


@dataclasses.dataclass(frozen=True)
class Resolution:
    """The target of a rewrite, or why there is none.

    Attributes:
        target: the nodes to convert; ``None`` for none.
        default_device: the device type of nodes that carry none.
        why_none: where there is no target, the reason, for people; else empty.
        uses_cost_model: whether nodes stay in float32 that are not faster in 16 bit. They do where
            amp_tf chooses the precision on a CPU, because costs are known there. A precision that
            the user chose converts everything on the lists.
        asked: the ops that the user put on the allow list, on a device where no op is faster, so
            that only these and forced nodes are converted; else ``None``.
        costs: what ops take on the CPU.
        stores_weights: whether variables that are only read in 16 bit will be stored in it, so that
            they need no casts.
        weighs_memory: whether the cost model counts bytes at the peak, too.
    """

    target: Target | None
    default_device: str
    why_none: str = ""
    uses_cost_model: bool = False
    asked: frozenset[str] | None = None
    costs: CostTable = SHIPPED
    stores_weights: bool = False
    weighs_memory: bool = False

    def under(self, config: AmpConfig) -> Resolution:
        """The same target by the op lists of other settings."""
        if self.target is None:
            return self
        table = self.target.lists.table
        lists = build_lists(table, config, registered_rows(), is_xla=self.target.is_xla)
        return dataclasses.replace(self, target=dataclasses.replace(self.target, lists=lists))

    def device_type(self, device: str) -> str:
        """The device type for a device string; without one, that of the default device."""
        return device_type_of(device) or self.default_device


@functools.lru_cache(maxsize=4096)
def device_type_of(device: str) -> str:
    """The device type for a device string such as ``/job:localhost/device:GPU:0`` or ``/gpu:0``.

    As in TensorFlow's pass, any device whose name holds ``gpu`` (or ``cpu``) counts, ``XLA_GPU``
    included.

    Returns:
        ``"GPU"``, ``"CPU"``, ``"OTHER"``, or ``""`` where the string names no device.
    """
    last = device.rpartition("/")[2].lower()
    if "gpu" in last:
        return GPU_DEVICE
    if "cpu" in last:
        return CPU_DEVICE
    return "OTHER" if last.startswith("device:") else ""


def hardware_for(config: AmpConfig) -> Hardware:
    """Returns the devices that a graph is rewritten for where it may run elsewhere.

    They are any current GPU for the target ``gpu``, a CPU with kernels of bfloat16 for ``cpu``,
    else this machine's CPU.
    """
    if config.target == "gpu":
        return Hardware((MIN_COMPUTE_CAPABILITY,))
    here = Hardware.detect_cpu()
    if config.target == "cpu":
        return dataclasses.replace(here, cpu_has_bf16=True, has_onednn=True)
    return here


def resolve_target(config: AmpConfig, hardware: Hardware) -> Resolution:
    """The target of a configuration on some hardware, with the ops that libraries have registered
    so far.
    """
    return _resolve(config, hardware, registered_rows())


@functools.lru_cache(maxsize=64)
def _resolve(config: AmpConfig, hardware: Hardware, more: tuple[OpRow, ...]) -> Resolution:
    on_gpu = config.target == "gpu" or (config.target == "auto" and hardware.has_gpu)
    device_type = GPU_DEVICE if on_gpu else CPU_DEVICE
    why_none = _why_none(config, hardware, on_gpu)
    if why_none:
        return Resolution(None, device_type, why_none)
    if config.precision != "auto":
        precision = Precision(config.precision)
    else:
        precision = Precision.FLOAT16 if on_gpu else Precision.BFLOAT16
    # float16 always follows the cuda lists, which guard its range; bfloat16 on a CPU follows the
    # cpu lists.
    is_cpus = precision is Precision.BFLOAT16 and not on_gpu
    lists = build_lists(CPU if is_cpus else CUDA, config, more, is_xla=hardware.is_xla)
    converts_all = config.ignore_performance or lists.force_all
    uses_cost_model = is_cpus and config.precision == "auto" and not converts_all
    asked = None
    if uses_cost_model and hardware.is_xla:
        asked = frozenset(config.allow_add)
        if not asked and not config.force_f16:
            return Resolution(None, device_type, XLA_WIDENS)
    # As IsDataTypeSupportedByOneDNNOnThisCPU of TensorFlow decides.
    onednn_has_bf16 = hardware.cpu_has_bf16 or hardware.cpu_has_avx512
    uses_onednn = hardware.has_onednn and onednn_has_bf16
    is_bf16 = precision is Precision.BFLOAT16
    target = Target(
        device_type,
        precision,
        lists,
        adds_in_float32=hardware.is_xla or (is_bf16 and uses_onednn),
        is_xla=hardware.is_xla,
        runs_on_cpu=not on_gpu or hardware.imitates_gpu,
    )
    return Resolution(
        target,
        device_type,
        uses_cost_model=uses_cost_model,
        asked=asked,
        costs=hardware.costs,
        weighs_memory=uses_cost_model and config.goal == "memory",
    )


def _why_none(config: AmpConfig, hardware: Hardware, on_gpu: bool) -> str:
    """Says why nothing is converted on this hardware; empty if nodes are."""
    if on_gpu:
        if config.ignore_performance or hardware.gpu_has_f16 or not hardware.has_gpu:
            return ""
        found = ", ".join(f"{major}.{minor}" for major, minor in hardware.gpu_capabilities)
        least = ".".join(map(str, MIN_COMPUTE_CAPABILITY))
        return f"the GPU is too old: compute capability {found}, 16 bit is fast from {least} on"
    is_asked = config.precision != "auto" or config.ignore_performance or config.target == "cpu"
    # In 16 bit tensors are half as large, even if it is slower.
    saves_memory = config.goal == "memory" and hardware.cpu_has_bf16
    if hardware.cpu_gains or is_asked or saves_memory:
        return ""
    if hardware.cpu_has_bf16 and not hardware.has_onednn:
        return "without oneDNN this CPU is no faster in bfloat16 and TensorFlow sees no GPU"
    if hardware.cpu_has_bf16:
        return "this CPU is no faster in bfloat16 and TensorFlow sees no GPU"
    return "this CPU has neither avx512_bf16 nor amx_bf16 and TensorFlow sees no GPU"


def build_lists(
    table: str, config: AmpConfig, more: tuple[OpRow, ...] = (), *, is_xla: bool = False
) -> OpLists:
    """Builds the lists of a table under a configuration.

    An op that the user adds to one list leaves the one that it is on. The level is applied as
    TensorFlow's pass does: ``TREAT_INFER_AS_DENY`` moves the infer list to the deny list;
    ``TENSOR_CORES_ONLY`` empties all lists but the allow list on the ``cuda`` table, with the ops
    that the user added.

    Args:
        table: ``cuda`` or ``cpu``.
        config: the settings.
        more: the rows that libraries registered.
        is_xla: whether XLA compiles the graph.
    """
    list_of = {}
    for row in (*ROWS, *more):
        if row.table == table and row.op not in getattr(config, f"{row.op_list}_remove"):
            list_of[row.op] = row.op_list
    for name in LIST_NAMES:  # AmpConfig has checked that no op joins two lists
        removed = getattr(config, f"{name}_remove")
        for op in getattr(config, f"{name}_add"):
            if op not in removed:
                list_of[op] = name
    for op, name in list(list_of.items()):
        if config.level == "TREAT_INFER_AS_DENY" and name == INFER:
            list_of[op] = DENY
        is_emptied = config.level == "TENSOR_CORES_ONLY" and table == CUDA and name != ALLOW
        if is_emptied or (is_xla and op in FLOAT32_ONLY_IN_XLA):
            del list_of[op]
    return OpLists(table, list_of, force_all=config.level == "UNSAFE_FORCE_ALL")
