"""Which nodes may be converted, to which precision and by which lists.

``auto`` resolves here: float16 on GPUs of compute capability 7.0 and newer, bfloat16 on CPUs that
have it in hardware, and nothing elsewhere. On a machine with a GPU the CPU's nodes stay in float32
under ``auto``, as in TensorFlow's pass: they are there because they feed or log.
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
    "AMP_TF_PRECISION=bfloat16 "
    "converts anyway"
)


@dataclasses.dataclass(frozen=True)
class OpLists:
    """Which list each op is on.

    Attributes:
        list_of: op name to ``allow``, ``infer``, ``deny`` or ``clear``; ops on no list are absent.
        force_all: paint every op that can be 16 bit, whatever its list (level
            ``UNSAFE_FORCE_ALL``).
    """

    table: str
    list_of: Mapping[str, str]
    force_all: bool = False

    def without(self, ops: frozenset[str]) -> OpLists:
        """The same lists without some ops."""
        return dataclasses.replace(
            self, list_of={op: name for op, name in self.list_of.items() if op not in ops}
        )

    def members(self, op_list: str) -> list[str]:
        """The ops of one list, sorted."""
        return sorted(op for op, name in self.list_of.items() if name == op_list)


@dataclasses.dataclass(frozen=True)
class Target:
    """The nodes of one device type and what becomes of them.

    Attributes:
        adds_in_float32: on CPUs, kernels of the 16-bit type keep their sums in float32: oneDNN's
            and XLA's do, Eigen's, which run otherwise, do not.
        is_xla: XLA compiles it, and may leave out roundings between two types.
        runs_on_cpu: a CPU computes it, be it what is rewritten for a GPU.
    """

    device_type: str
    precision: Precision
    lists: OpLists
    adds_in_float32: bool = True
    is_xla: bool = False
    runs_on_cpu: bool = False

    @property
    def rounded(self) -> frozenset[str]:
        """Ops that float32 kernels compute, of operands that are rounded to 16 bit before and with
        a result that is rounded behind.
        """
        return ROUNDED if self.runs_on_cpu and self.precision is Precision.FLOAT16 else frozenset()

    @property
    def runs_eigen(self) -> bool:
        """Whether TensorFlow's own kernels of a CPU compute the 16-bit type."""
        return self.device_type == CPU_DEVICE and not self.adds_in_float32

    @property
    def without_kernel(self) -> frozenset[str]:
        """Ops whose 16-bit kernels are registered, but do not run there."""
        return PLACEHOLDERS if self.runs_eigen else frozenset()


@dataclasses.dataclass(frozen=True)
class Resolution:
    """The target of a rewrite, or why there is none.

    Attributes:
        target: what is converted; ``None`` for nothing.
        default_device: the device type of nodes that carry none.
        why_none: where there is no target, the reason, for people; else empty.
        uses_cost_model: leave in float32 what is not faster. So it is where amp_tf chooses the
            precision, on CPUs, of whose ops the costs are known; a precision that the user chose
            means all that the lists convert.
        asked: where no op is faster but what the user asks for is converted, the ops that the user
            put on the allow list; nodes that are forced are asked for, too. Else ``None``.
        stores_weights: variables that are read in 16 bit alone will be stored so, and no cast of
            them is paid.
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
        lists = build_lists(
            self.target.lists.table, config, registered_rows(), is_xla=self.target.is_xla
        )
        return dataclasses.replace(self, target=dataclasses.replace(self.target, lists=lists))

    def device_type(self, device: str) -> str:
        """The device type of a node, from its device string; nodes without one are on the default
        device.
        """
        return device_type_of(device) or self.default_device


@functools.lru_cache(maxsize=4096)
def device_type_of(device: str) -> str:
    """``"GPU"``, ``"CPU"`` or ``""`` for a device string such as ``/job:localhost/device:GPU:0`` or
    ``/gpu:0``.

    As in TensorFlow's pass, any device whose name holds ``gpu`` (or ``cpu``) counts, ``XLA_GPU``
    included.
    """
    last = device.rpartition("/")[2].lower()
    if "gpu" in last:
        return GPU_DEVICE
    if "cpu" in last:
        return CPU_DEVICE
    return "OTHER" if last.startswith("device:") else ""


def resolve_target(config: AmpConfig, hardware: Hardware) -> Resolution:
    """The target of a configuration on some hardware, with what libraries registered so far."""
    return _resolve(config, hardware, registered_rows())


@functools.lru_cache(maxsize=64)
def _resolve(config: AmpConfig, hardware: Hardware, more: tuple[OpRow, ...]) -> Resolution:
    on_gpu = config.target == "gpu" or (config.target == "auto" and hardware.has_gpu)
    device_type = GPU_DEVICE if on_gpu else CPU_DEVICE
    precision = Precision(
        config.precision if config.precision != "auto" else "float16" if on_gpu else "bfloat16"
    )
    if why_none := _why_none(config, hardware, on_gpu):
        return Resolution(None, device_type, why_none)
    # float16 always follows the cuda lists, which guard its range; bfloat16 on a CPU follows the
    # cpu lists.
    is_cpus = precision is Precision.BFLOAT16 and not on_gpu
    lists = build_lists(CPU if is_cpus else CUDA, config, more, is_xla=hardware.is_xla)
    # Whether oneDNN computes in it: as IsDataTypeSupportedByOneDNNOnThisCPU of TensorFlow decides.
    uses_onednn = (
        is_cpus and hardware.has_onednn and (hardware.cpu_has_bf16 or hardware.cpu_has_avx512)
    )
    uses_cost_model = (
        is_cpus
        and config.precision == "auto"
        and not (config.ignore_performance or lists.force_all)
    )
    asked = frozenset(config.allow_add) if uses_cost_model and hardware.is_xla else None
    if asked is not None and not (asked or config.force_f16):
        return Resolution(
            None, device_type, XLA_WIDENS
        )  # measured: benchmarks/README.md, XLA on CPUs
    target = Target(
        device_type,
        precision,
        lists,
        adds_in_float32=uses_onednn or hardware.is_xla,
        is_xla=hardware.is_xla,
        runs_on_cpu=not on_gpu or hardware.imitates_gpu,
    )
    weighs_memory = uses_cost_model and config.goal == "memory"
    return Resolution(
        target, device_type, "", uses_cost_model, asked, hardware.costs, weighs_memory=weighs_memory
    )


def _why_none(config: AmpConfig, hardware: Hardware, on_gpu: bool) -> str:
    """Why nothing is converted on this hardware; empty where something is."""
    if on_gpu:
        if config.ignore_performance or hardware.gpu_has_f16 or not hardware.has_gpu:
            return ""
        found = ", ".join(f"{major}.{minor}" for major, minor in hardware.gpu_capabilities)
        least = ".".join(map(str, MIN_COMPUTE_CAPABILITY))
        return f"the GPU is too old: compute capability {found}, 16 bit is fast from {least} on"
    asked = config.precision != "auto" or config.ignore_performance or config.target == "cpu"
    asked |= (
        config.goal == "memory" and hardware.cpu_has_bf16
    )  # it halves what is held, though it be slower
    if hardware.cpu_gains or asked:
        return ""
    why = (
        "is no faster in bfloat16"
        if hardware.cpu_has_bf16
        else "has neither avx512_bf16 nor amx_bf16"
    )
    return f"this CPU {why} and TensorFlow sees no GPU"


def build_lists(
    table: str, config: AmpConfig, more: tuple[OpRow, ...] = (), *, is_xla: bool = False
) -> OpLists:
    """The lists of a table under a configuration. An op that the user adds to one list leaves the
    one that it is on.

    The level is applied as TensorFlow's pass does: ``TREAT_INFER_AS_DENY`` moves the infer list to
    the deny list; ``TENSOR_CORES_ONLY`` empties all lists but the allow list on the ``cuda`` table,
    what the user added included. More rows are what libraries registered.
    """
    rows = (row for row in (*ROWS, *more) if row.table == table)
    list_of = {
        row.op: row.op_list
        for row in rows
        if row.op not in getattr(config, f"{row.op_list}_remove")
    }
    for name in LIST_NAMES:  # each op joins one list only: AmpConfig sees to it
        joining = {*getattr(config, f"{name}_add")}.difference(getattr(config, f"{name}_remove"))
        list_of |= dict.fromkeys(joining, name)
    if config.level == "TREAT_INFER_AS_DENY":
        list_of = {op: DENY if name == INFER else name for op, name in list_of.items()}
    if config.level == "TENSOR_CORES_ONLY" and table == CUDA:
        list_of = {op: name for op, name in list_of.items() if name == ALLOW}
    lists = OpLists(table, list_of, force_all=config.level == "UNSAFE_FORCE_ALL")
    return lists.without(FLOAT32_ONLY_IN_XLA) if is_xla else lists
