"""Kernel availability: whether TensorFlow has a kernel for a node with given types on a device type.

Source: TensorFlow's own kernel registry (``tensorflow.python.framework.kernels``), matched the way
``IsKernelRegisteredForNode`` does: the device type is equal (or the kernel serves every device), the kernel's label is
the node's, and every constrained attribute has only types that the kernel allows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

_EVERY_DEVICE = "DEFAULT"
_WITNESS = "MatMul"  # an op that every TensorFlow build with kernels for a device type has on it


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One registered kernel: the types that it allows for each constrained attribute."""

    constraints: tuple[tuple[str, frozenset[int]], ...]

    def accepts(self, types: Mapping[str, Sequence[int]]) -> bool:
        """Whether all constraints hold for a node's type attributes, each given as ``DataType`` numbers.

        As in TensorFlow, a kernel that constrains an attribute which the op does not have (TopK's) serves no node.
        """
        return all(attr in types and allowed.issuperset(types[attr]) for attr, allowed in self.constraints)


@functools.lru_cache(maxsize=8192)
def kernels_of(op: str, device_type: str) -> tuple[Kernel, ...]:
    """The kernels of an op for a device type, unlabelled ones only (labelled ones are chosen by name, not by type)."""
    from tensorflow.python.framework import kernels

    found = [kernel for kernel in kernels.get_registered_kernels_for_op(op).kernel if not kernel.label]
    return tuple(_read(kernel) for kernel in found if kernel.device_type in (device_type, _EVERY_DEVICE))


def is_known(device_type: str) -> bool:
    """Whether this TensorFlow has kernels for the device type at all; if not, availability cannot be told."""
    return bool(kernels_of(_WITNESS, device_type))


def has_kernel(op: str, device_type: str, types: Mapping[str, Sequence[int]]) -> bool:
    """Whether some kernel of the op accepts these types; true where the device type is unknown to this TensorFlow."""
    accepted = any(kernel.accepts(types) for kernel in kernels_of(op, device_type))
    return accepted or not is_known(device_type)  # asked last: each question makes TensorFlow search all its kernels


def _read(kernel: Any) -> Kernel:
    return Kernel(
        tuple(
            (constraint.name, frozenset(constraint.allowed_values.list.type))
            for constraint in kernel.constraint
            if constraint.allowed_values.list.type
        )
    )
