"""The kernels of an optimized HLO module: products by type, casts, bytes, a roofline.

An instruction of the entry, of a loop's body or of a branch is a kernel, and so is a fusion. A
loop's kernels run as often as XLA says that its body does. XLA does not say it for a backward loop,
which runs as often as the forward loops whose results it takes. The branch that moves most bytes
counts (the update of a step whose gradients are finite). A kernel reads its operands and writes its
results once; of a buffer that it slices, only the slice. Its time on the roofline is the larger of
bytes by bandwidth and FLOPs by the peak for the type that it multiplies.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from benchmarks.gpu.hlo import Array, Computation, Instruction, Module
from benchmarks.gpu.targets import Target

_NAMES = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast"})
_FREE = _NAMES | {
    "after-all",
    "partition-id",
    "replica-id",
    "opt-barrier",
    "copy-done",
    "async-done",
    "async-update",
}
_MOVES = _NAMES | {"fusion", "convert", "copy", "transpose", "reshape", "broadcast"}
_FLOATS = frozenset({"f32", "f16", "bf16"})
_SLICES = frozenset({"dynamic-slice", "slice", "gather"})


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One kernel.

    Attributes:
        name: of its instruction.
        runs: how often it runs in one step.
        bytes: that one run reads and writes.
        products: the element types of the products in it, such as ``"f16"`` or ``"f16,f32"``.
        flops: of these products.
        is_cast: whether all that it does is to cast floating-point values, and to lay them out
            anew.
    """

    name: str
    runs: int
    bytes: int
    products: tuple[str, ...]
    flops: int
    is_cast: bool

    def seconds(self, target: Target) -> float:
        """Returns the least time that one run takes on a GPU, in seconds."""
        peak = target.flops_16
        if any("f32" in kinds for kinds in self.products):
            peak = target.flops_32
        return max(self.bytes / target.bandwidth, self.flops / peak)


@dataclasses.dataclass(frozen=True)
class Figures:
    """The figures of a compiled step.

    Attributes:
        products: the products of the module by element type; one in a loop counts once.
        casts: kernels that only cast; one in a loop counts once.
        cast_runs: how often such kernels run.
        mib: moved, in MiB.
        roofline_us: the least time on the GPU, microseconds.
    """

    products: dict[str, int]
    casts: int
    cast_runs: int
    mib: float
    roofline_us: float


def figures(module: Module, target: Target) -> Figures:
    """Sums up the kernels of a module."""
    products: Counter[str] = Counter()
    casts = 0
    cast_runs = 0
    moved = 0
    seconds = 0.0
    for kernel in kernels(module):
        products.update(kernel.products)
        moved += kernel.runs * kernel.bytes
        seconds += kernel.runs * kernel.seconds(target)
        if kernel.is_cast:
            casts += 1
            cast_runs += kernel.runs
    return Figures(
        products=dict(sorted(products.items())),
        casts=casts,
        cast_runs=cast_runs,
        mib=moved / 2**20,
        roofline_us=1e6 * seconds,
    )


def kernels(module: Module) -> list[Kernel]:
    """Finds all kernels of a module.

    Raises:
        ValueError: how often a loop runs is not known.
    """
    return list(_kernels(module, module.entry, 1))


def _kernels(module: Module, name: str, runs: int) -> Iterator[Kernel]:
    computation = module.computations[name]
    for instruction in computation.values():
        if instruction.op in _FREE:
            continue
        inner = _inlined(instruction)
        if inner:
            yield from _kernels(module, inner, runs)
        elif instruction.op == "while":
            trips = _trips(computation, instruction)
            yield from _kernels(module, str(instruction.called("body")), runs * trips)
        elif instruction.op == "conditional":
            branches = [list(_kernels(module, way, runs)) for way in _ways(instruction)]
            yield from max(branches, key=_moved)
        else:
            yield _kernel(module, computation, instruction, runs)


def _trips(computation: Computation, loop: Instruction) -> int:
    """Returns how often a loop runs: as XLA knows, or as the loops do whose results it takes."""
    known = _known_trips(loop)
    if known:
        return known
    seen: set[str] = set()
    waiting = list(loop.operands)
    counts: set[int] = set()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in computation:
            continue
        seen.add(name)
        source = computation[name]
        known = _known_trips(source)
        if known:
            counts.add(known)
        else:
            waiting += source.operands
    if len(counts) != 1:
        raise ValueError(
            f"How often the loop {loop.name} runs is not known: the loops before it run "
            f"{sorted(counts)}."
        )
    return counts.pop()


def _known_trips(loop: Instruction) -> int:
    return int(loop.find(r'known_trip_count":\{"n":"(\d+)"') or 0)


def _moved(found: Iterable[Kernel]) -> int:
    return sum(kernel.runs * kernel.bytes for kernel in found)


def _ways(conditional: Instruction) -> list[str]:
    """Returns the computations of a conditional's branches."""
    named = conditional.find(r"branch_computations=\{([^}]*)\}")
    if named is not None:
        return [way.strip().lstrip("%") for way in named.split(",")]
    return [str(conditional.called(way)) for way in ("true_computation", "false_computation")]


def _inlined(instruction: Instruction) -> str | None:
    """Returns the computation of a call, or of an instruction that runs beside others."""
    if instruction.op == "call":
        return instruction.called("to_apply")
    if instruction.op == "async-start":
        return instruction.called("calls")
    return None


def _kernel(
    module: Module, computation: Computation, instruction: Instruction, runs: int
) -> Kernel:
    inside = [(computation, instruction), *_inside(module, instruction)]
    products = []
    flops = 0
    for where, one in inside:
        if _is_product(one):
            kinds, own_flops = _product(where, one)
            products.append(kinds)
            flops += own_flops
    return Kernel(
        name=instruction.name,
        runs=runs,
        bytes=_bytes(module, computation, instruction),
        products=tuple(products),
        flops=flops,
        is_cast=_is_cast(inside),
    )


def _inside(module: Module, instruction: Instruction) -> Iterator[tuple[Computation, Instruction]]:
    """Yields the instructions of a fusion and of the fusions in it."""
    if instruction.op != "fusion":
        return
    computation = module.computations[str(instruction.called("calls"))]
    for one in computation.values():
        yield computation, one
        yield from _inside(module, one)


def _is_cast(inside: Iterable[tuple[Computation, Instruction]]) -> bool:
    """Tells whether instructions only move values, and convert floating-point ones."""
    is_cast = False
    for where, one in inside:
        if one.op not in _MOVES:
            return False
        if one.op == "convert":
            given = where[one.operands[0]].results[0]
            made = one.results[0]
            is_cast |= {given.element, made.element} <= _FLOATS
    return is_cast


def _is_product(one: Instruction) -> bool:
    return one.op in ("dot", "convolution") or bool(_library_target(one))


def _library_target(one: Instruction) -> str | None:
    """Returns the target of a call of cuBLAS or cuDNN; ``None`` for other instructions."""
    if one.op != "custom-call":
        return None
    return one.find(r'custom_call_target="__(cu(?:blas|dnn)\$?[^"]*)"')


def _product(where: Computation, one: Instruction) -> tuple[str, int]:
    """Returns the element types that a product multiplies, and its FLOPs."""
    left = where[one.operands[0]].results[0]
    right = where[one.operands[1]].results[0]
    kinds = ",".join(sorted({left.element, right.element}))
    if one.op == "convolution" or "conv" in (_library_target(one) or ""):
        return kinds, _convolution_flops(one, left, right)
    axes = one.find(r"lhs_contracting_dims=\{([\d,]*)\}")
    if axes is None:
        axes = one.find(r'"lhs_contracting_dimensions":\[([^\]]*)\]') or ""
    shared = 1
    for axis in re.findall(r"\d+", axes):
        shared *= left.dimensions[int(axis)]
    return kinds, 2 * shared * math.prod(one.results[0].dimensions)


def _convolution_flops(one: Instruction, left: Array, right: Array) -> int:
    """Counts two for each element of the output and each of the kernel that it takes, whichever way
    the gradient goes.
    """
    target = _library_target(one) or ""
    result = one.results[0]
    if "BackwardInput" in target:
        kernel = right
        output = left
    elif "BackwardFilter" in target:
        kernel = result
        output = right
    else:
        kernel = right
        output = result
    letters = re.search(r"dim_labels=\w+_(\w+)->", one.attributes)
    if letters is None:
        raise ValueError(f"The convolution {one.name} has no dim_labels.")
    taken = 1
    for size, letter in zip(kernel.dimensions, letters[1], strict=True):
        if letter != "o":
            taken *= size
    return 2 * taken * math.prod(output.dimensions)


def _bytes(module: Module, computation: Computation, instruction: Instruction) -> int:
    """Returns the bytes that a kernel reads and writes."""
    if instruction.op in _SLICES:
        return 2 * instruction.bytes
    if instruction.op == "dynamic-update-slice":
        return 2 * computation[instruction.operands[1]].bytes
    if instruction.op != "fusion":
        read = {*instruction.operands} & computation.keys()
        return sum(computation[name].bytes for name in read) + instruction.bytes
    body = module.computations[str(instruction.called("calls"))]
    total = _written(body)
    for one in body.values():
        if one.op == "parameter":
            total += _read(body, one)
    return total


def _read(body: Computation, parameter: Instruction) -> int:
    """Returns the bytes of a parameter that a fusion reads: of slices alone, if it takes only
    slices.
    """
    total = 0
    for user, name in _users(body, parameter.name):
        is_sliced = user.operands[0] == name
        if is_sliced and user.op in _SLICES:
            total += user.bytes
        elif not (is_sliced and user.op == "dynamic-update-slice"):
            return parameter.bytes
    return total


def _users(body: Computation, name: str) -> Iterator[tuple[Instruction, str]]:
    """Yields the readers of a value, each with the name that it reads; bitcasts are skipped."""
    for user in body.values():
        if name not in user.operands:
            continue
        if user.op in ("bitcast", "get-tuple-element"):
            yield from _users(body, user.name)
        else:
            yield user, name


def _written(body: Computation) -> int:
    """Returns the bytes that a fusion writes: of a buffer that it updates, only the slice."""
    root = next(one for one in body.values() if one.is_root)
    names: tuple[str, ...] = (root.name,)
    if root.op == "tuple":
        names = root.operands
    total = 0
    for name in names:
        one = body[name]
        while one.op == "bitcast":
            one = body[one.operands[0]]
        if one.op == "dynamic-update-slice":
            one = body[one.operands[1]]
        total += one.bytes
    return total
