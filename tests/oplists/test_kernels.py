"""Which kernels there are, and what they refuse, against the kernels of the TensorFlow and the CPU
at hand.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2
from tensorflow.python.framework import op_def_registry
from tensorflow.python.util import _pywrap_kernel_registry

from amp_tf.oplists import kernels
from amp_tf.oplists.kernels import has_kernel, is_known, kernels_of
from amp_tf.oplists.table import KERNELS_DECIDE, ROWS
from tests import as_cpu, processes
from tests.oplists import kernel_probe
from tests.oplists.kernel_probe import DIFFERS, FAILS_IN_FLOAT32, REFUSES, TYPES, Case

ROOT = Path(__file__).resolve().parents[2]
CASES = kernel_probe.cases()
FLOAT = 1
DOUBLE = 2
HALF = 19
BFLOAT16 = 14
STRING = 7
INT32 = 3
Types = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Found:
    """The findings of a process: the types that oneDNN computes, and the outcomes of all cases."""

    onednn: tuple[str, ...]
    outcomes: list[dict[str, str]]

    def refused(self, name: str) -> set[str]:
        """The cases that float32 computes and a type does not, although it has a kernel."""
        pairs = zip(CASES, self.outcomes, strict=True)
        return {
            str(case)
            for case, of in pairs
            if of[name].startswith(REFUSES) and is_registered(case, name)
        }

    def expected(self, name: str) -> set[str]:
        """The cases that the table says are refused."""
        pairs = zip(CASES, self.outcomes, strict=True)
        runs_eigen = name == "float16" or name not in self.onednn  # as amp_tf takes it, on any CPU
        return {
            str(case)
            for case, of in pairs
            if of[name] != FAILS_IN_FLOAT32 and what_is_refused(case, name, runs_eigen=runs_eigen)
        }


@pytest.fixture(scope="module", params=["here", "without avx512"])
def found(request: pytest.FixtureRequest) -> Found:
    """float32 is computed by oneDNN, in one process as it is here, in another on a CPU for which
    oneDNN has no more.
    """
    environ = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "1"}
    if request.param != "here":
        if platform.machine() != "x86_64":
            pytest.skip("the CPU can be made to look older on x86-64 alone")
        environ |= as_cpu.variables()
    command = [sys.executable, "-m", "tests.oplists.kernel_probe", "--json"]
    ended = processes.run(
        command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    facts = json.loads(ended.stdout)
    return Found(tuple(facts["onednn"]), facts["outcomes"])


def is_registered(case: Case, name: str) -> bool:
    """Returns True if the registry has a kernel for a type, and the op's definition lists it."""
    number = tf.as_dtype(name).as_datatype_enum
    types = kernel_probe.type_attributes(case, number)
    allowed = {
        attr.name: attr.allowed_values.list.type
        for attr in op_def_registry.get(case.op).attr
        if attr.type == "type"
    }
    listed = all(
        not allowed.get(attr) or number in allowed[attr]
        for attr in ("T", "TInput")
        if attr in types
    )
    return (listed or case.op in KERNELS_DECIDE) and kernels.has_kernel(case.op, "CPU", types)


def what_is_refused(case: Case, name: str, *, runs_eigen: bool = True) -> str:
    if not is_registered(case, name):
        return ""
    if case.op in kernels.PLACEHOLDERS and runs_eigen:
        return "a placeholder"
    number = tf.as_dtype(name).as_datatype_enum
    attributes = kernel_probe.node_attributes(case, number)
    rows = kernels.refusals(number, runs_eigen=runs_eigen)
    asked = (
        row.what
        for row in rows
        if case.op in row.ops and row.is_asked(attributes, lambda: kernel_probe.channels(case))
    )
    return next(asked, "")


@pytest.mark.parametrize("name", TYPES)
def test_the_table_says_what_the_kernels_refuse(found: Found, name: str) -> None:
    refused = found.refused(name)
    expected = found.expected(name)
    if (
        name not in found.onednn
    ):  # some of _FusedMatMul is computed; all of it is split, so that one rule is for all
        refused, expected = (
            {case for case in cases if "_FusedMatMul" not in case} for cases in (refused, expected)
        )
    assert refused - expected == set()
    if (
        name == "bfloat16" or name not in found.onednn
    ):  # else oneDNN computes more of float16 than amp_tf makes use of
        assert expected - refused == set()


@pytest.mark.parametrize("name", TYPES)
def test_what_is_not_refused_is_computed_right(found: Found, name: str) -> None:
    pairs = zip(CASES, found.outcomes, strict=True)
    assert [str(case) for case, of in pairs if of[name] == DIFFERS] == []


def test_every_word_of_the_table_is_needed(found: Found) -> None:
    """Without any op of any row, some case that is refused here would not be expected."""
    if set(TYPES) & {*found.onednn}:
        pytest.skip("oneDNN computes one of the types here, of which the table says nothing")
    needed = {
        (what_is_refused(case, name), case.op)
        for case, of in zip(CASES, found.outcomes, strict=True)
        for name in TYPES
        if of[name].startswith(REFUSES)
    }
    listed = {(row.what, op) for row in kernels.REFUSALS for op in row.ops}
    assert listed <= needed


def test_every_product_that_this_tensorflow_can_run_on_a_cpu_is_a_case() -> None:
    allowed = {
        row.op for row in ROWS if row.op_list == "allow" and op_def_registry.get(row.op) is not None
    }
    tried = {case.op for case in CASES}
    float32 = {"T": [1]}
    missing = {op for op in allowed - tried if kernels.has_kernel(op, "CPU", float32)}
    assert missing == {
        "Conv3DBackpropFilter",
        "Conv3DBackpropInput",
        "GRUBlockCell",
        "GRUBlockCellGrad",
    }, "the first two may not stand in a new graph, the others take float32 alone"


@pytest.mark.parametrize(
    ("op", "types"),
    [
        ("MatMul", {"T": [STRING]}),
        ("AvgPool3D", {"T": [HALF]}),
        ("FusedBatchNorm", {"T": [HALF]}),
        ("NoSuchOp", {}),
    ],
)
def test_what_has_no_kernel_is_told(op, types):
    assert not has_kernel(op, "CPU", types)


def test_types_that_no_kernel_constrains_may_be_any():
    assert has_kernel("SaveV2", "CPU", {"dtypes": [FLOAT, INT32]})


def test_a_constraint_on_an_attribute_that_the_op_lacks_is_never_met():
    assert not has_kernel(
        "TopK", "CPU", {"T": [FLOAT]}
    )  # its kernels constrain TopKV2's index_type


def test_kernels_with_a_label_do_not_count():
    from tensorflow.python.framework import kernels

    for op in ("DataFormatDimMap", "_MklMatMul", "MatMul"):
        all_of_op = kernels.get_registered_kernels_for_op(op).kernel
        unlabelled = [
            kernel
            for kernel in all_of_op
            if not kernel.label and kernel.device_type in ("CPU", "DEFAULT")
        ]
        assert len(kernels_of(op, "CPU")) == len(unlabelled)


def test_a_device_type_that_this_tensorflow_knows_nothing_about_is_not_judged():
    assert not is_known("ABACUS")
    assert has_kernel("AvgPool3D", "ABACUS", {"T": [HALF]})
    assert is_known("CPU")


def test_what_is_found_is_what_tensorflow_finds(capfd):
    differing = [
        (op, device_type, types)
        for op in sorted({row.op for row in ROWS})
        for device_type in ("CPU", "GPU")
        for types in mixtures(op)
        if is_known(device_type)
        and tensorflow_finds(op, device_type, types) != has_kernel(op, device_type, types)
    ]
    capfd.readouterr()  # TensorFlow's words about the many that do not exist
    assert differing == []


def tensorflow_finds(op: str, device_type: str, types: Types) -> bool:
    node = node_def_pb2.NodeDef(name="asked", op=op, device=f"/device:{device_type}:0")
    for attr, numbers in types.items():
        node.attr[attr].list.type.extend(numbers)
    return bool(_pywrap_kernel_registry.TryFindKernelClass(node.SerializeToString()))


def mixtures(op: str) -> Iterator[Types]:
    """Each type attribute as float, half, bfloat16 and double, one by one and all at once, the
    others as they start.

    None for ops that call functions.
    """
    definition = op_def_registry.get(op)
    if definition is None or any("func" in attr.type for attr in definition.attr):
        return
    typed = [attr for attr in definition.attr if attr.type in ("type", "list(type)")]
    domains = {attr.name: tuple(attr.allowed_values.list.type) or (FLOAT,) for attr in typed}
    first = {attr: FLOAT if FLOAT in allowed else allowed[0] for attr, allowed in domains.items()}
    for number in (FLOAT, HALF, BFLOAT16, DOUBLE):
        for attrs in [[attr] for attr in domains] + [list(domains)]:
            yield {attr: (number if attr in attrs else first[attr],) for attr in domains}
