"""Which kernels there are, and what they refuse, against the kernels of the TensorFlow and the CPU
at hand.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2
from tensorflow.python.framework import kernels as registered
from tensorflow.python.framework import op_def_registry
from tensorflow.python.util import _pywrap_kernel_registry

from amp_tf.hooks import native
from amp_tf.oplists import kernels
from amp_tf.oplists.kernels import has_kernel, is_known, kernels_of
from amp_tf.oplists.table import KERNELS_DECIDE, ROWS
from tests import as_cpu, processes
from tests.oplists import kernel_probe
from tests.oplists.kernel_probe import DIFFERS, FAILS_IN_FLOAT32, REFUSES, TYPES
from tests.painting.painted import painted

ROOT = Path(__file__).resolve().parents[2]
CASES = kernel_probe.cases()
FLOAT = 1
DOUBLE = 2
HALF = 19
BFLOAT16 = 14
INT32 = 3


@dataclasses.dataclass(frozen=True)
class Found:
    """The findings of a process: the types that oneDNN computes, and the outcomes of all cases."""

    onednn: tuple[str, ...]
    outcomes: list[dict[str, str]]

    def of_type(self, name):
        """Yields the cases and their outcomes in a type."""
        for case, outcomes in zip(CASES, self.outcomes, strict=True):
            yield case, outcomes[name]

    def refused(self, name):
        """The cases that float32 computes and a type does not, although it has a kernel."""
        found = set()
        for case, outcome in self.of_type(name):
            if outcome.startswith(REFUSES) and is_registered(case, name):
                found.add(str(case))
        return found

    def expected(self, name):
        """The cases that the table says are refused."""
        runs_eigen = name == "float16" or name not in self.onednn  # as amp_tf takes it, on any CPU
        found = set()
        for case, outcome in self.of_type(name):
            refused = what_is_refused(case, name, runs_eigen=runs_eigen)
            if outcome != FAILS_IN_FLOAT32 and refused:
                found.add(str(case))
        return found


@pytest.fixture(scope="module", params=["here", "without avx512"])
def found(request):
    """float32 is computed by oneDNN, in one process as it is here, in another on a CPU for which
    oneDNN has no more.
    """
    environ = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "1"}
    if request.param != "here":
        environ |= as_cpu.variables()
        if "ONEDNN_MAX_CPU_ISA" not in environ:
            pytest.skip("this CPU has none")
    command = [sys.executable, "-m", "tests.oplists.kernel_probe"]
    ended = processes.run(
        command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    facts = json.loads(ended.stdout)
    return Found(tuple(facts["onednn"]), facts["outcomes"])


def is_registered(case, name):
    """Returns True if the registry has a kernel for a type, and the op's definition lists it."""
    number = tf.as_dtype(name).as_datatype_enum
    types = kernel_probe.type_attributes(case, number)
    is_listed = True
    for attr in op_def_registry.get(case.op).attr:
        allowed = attr.allowed_values.list.type
        if attr.type == "type" and attr.name in ("T", "TInput") and allowed:
            is_listed = is_listed and number in allowed
    if not is_listed and case.op not in KERNELS_DECIDE:
        return False
    return kernels.has_kernel(case.op, "CPU", types)


def what_is_refused(case, name, *, runs_eigen=True):
    if not is_registered(case, name):
        return ""
    if case.op in kernels.PLACEHOLDERS and runs_eigen:
        return "a placeholder"
    number = tf.as_dtype(name).as_datatype_enum
    attributes = kernel_probe.node_attributes(case, number)
    for row in kernels.refusals(number, runs_eigen=runs_eigen):
        if case.op in row.ops and row.is_asked(attributes):
            return row.what
    return ""


@pytest.mark.parametrize("name", TYPES)
def test_the_table_says_what_the_kernels_refuse(found, name):
    refused = found.refused(name)
    expected = found.expected(name)
    if name not in found.onednn:
        # Some of _FusedMatMul is computed; all of it is split, so that one rule is for all. And
        # float32 computes products.
        others = {str(case) for case in CASES if case.op in {"_FusedMatMul"} | kernels.ROUNDED}
        refused -= others
        expected -= others
    assert refused - expected == set()
    # Else oneDNN computes more of float16 than amp_tf makes use of.
    if name == "bfloat16" or name not in found.onednn:
        assert expected - refused == set()


@pytest.mark.parametrize("name", TYPES)
def test_what_is_not_refused_is_computed_right(found, name):
    wrong = []
    for case, outcome in found.of_type(name):
        if outcome == DIFFERS:
            wrong.append(str(case))
    assert wrong == []


def test_every_word_of_the_table_is_needed(found):
    """Without any op of any row, some case that is refused here would not be expected."""
    if set(TYPES) & {*found.onednn}:
        pytest.skip("oneDNN computes one of the types here, of which the table says nothing")
    needed = set()
    for name in TYPES:
        for case, outcome in found.of_type(name):
            if outcome.startswith(REFUSES):
                needed.add((what_is_refused(case, name), case.op))
    for row in kernels.REFUSALS:
        for op in row.ops:
            assert (row.what, op) in needed


def test_every_product_that_this_tensorflow_can_run_on_a_cpu_is_a_case():
    have_case = {case.op for case in CASES}
    without_case = set()
    for row in ROWS:
        op = row.op
        if row.op_list != "allow" or op in have_case or op_def_registry.get(op) is None:
            continue
        if has_kernel(op, "CPU", {"T": [FLOAT]}):
            without_case.add(op)
    # The first two may not stand in a new graph, the others take float32 alone.
    gradients = {"Conv3DBackpropFilter", "Conv3DBackpropInput"}
    assert without_case == {*gradients, "GRUBlockCell", "GRUBlockCellGrad"}


@pytest.mark.parametrize(
    ("op", "types", "is_found"),
    [
        ("NoSuchOp", {}, False),
        ("SaveV2", {"dtypes": [FLOAT, INT32]}, True),  # no kernel constrains them
        ("TopK", {"T": [FLOAT]}, False),  # its kernels constrain an attribute of TopKV2
    ],
)
def test_what_has_no_kernel_is_told(op, types, is_found):
    assert has_kernel(op, "CPU", types) == is_found


@pytest.mark.parametrize("op", ["DataFormatDimMap", "_MklMatMul", "MatMul"])
def test_kernels_with_a_label_do_not_count(op):
    count = 0
    for kernel in registered.get_registered_kernels_for_op(op).kernel:
        count += not kernel.label and kernel.device_type in ("CPU", "DEFAULT")
    assert len(kernels_of(op, "CPU")) == count


def test_a_device_type_that_this_tensorflow_knows_nothing_about_is_not_judged():
    assert not is_known("ABACUS")
    assert has_kernel("AvgPool3D", "ABACUS", {"T": [HALF]})
    assert is_known("CPU")


def test_what_is_found_is_what_tensorflow_finds(capfd):
    differing = []
    for op in sorted({row.op for row in ROWS}):
        for device_type in filter(is_known, ("CPU", "GPU")):
            for types in mixtures(op):
                is_found = has_kernel(op, device_type, types)
                if tensorflow_finds(op, device_type, types) != is_found:
                    differing.append((op, device_type, types))
    capfd.readouterr()  # TensorFlow's words about the many that do not exist
    assert differing == []


def tensorflow_finds(op, device_type, types):
    node = node_def_pb2.NodeDef(name="asked", op=op, device=f"/device:{device_type}:0")
    for attr, numbers in types.items():
        node.attr[attr].list.type.extend(numbers)
    return bool(_pywrap_kernel_registry.TryFindKernelClass(node.SerializeToString()))


def mixtures(op):
    """Each type attribute as float, half, bfloat16 and double, one by one and all at once, the
    others as they start.

    None for ops that call functions.
    """
    definition = op_def_registry.get(op)
    if definition is None or any("func" in attr.type for attr in definition.attr):
        return
    first = {}
    for attr in definition.attr:
        if attr.type in ("type", "list(type)"):
            allowed = attr.allowed_values.list.type or [FLOAT]
            first[attr.name] = (FLOAT if FLOAT in allowed else allowed[0],)
    for number in (FLOAT, HALF, BFLOAT16, DOUBLE):
        for attr in first:
            yield {**first, attr: (number,)}
        yield dict.fromkeys(first, (number,))


def test_a_kernel_of_a_library_that_is_loaded_later_is_found():
    """TensorFlow's C interface registers one for an op that has none on CPUs."""
    op = "NcclBroadcast"
    text = f"""
        x = Placeholder()
        a = MatMul(x, x)
        b = {op}(a) shape=[]
        c = MatMul(b, b)
    """
    assert not has_kernel(op, "CPU", {"T": [BFLOAT16]})
    assert painted(text, infer_add=(op,)).f16 == "a c"
    register_kernel(op)
    assert has_kernel(op, "CPU", {"T": [BFLOAT16]})
    assert painted(text, infer_add=(op,)).f16 == "a b c"


def register_kernel(op):
    """Registers a kernel for CPUs and all types, which must never run."""
    library = native.tensorflow_library()
    library.TF_NewKernelBuilder.restype = ctypes.c_void_p
    library.TF_NewStatus.restype = ctypes.c_void_p
    never = ctypes.CFUNCTYPE(None)()
    builder = library.TF_NewKernelBuilder(op.encode(), b"CPU", never, never, never)
    status = library.TF_NewStatus()
    library.TF_RegisterKernelBuilder(
        f"{op} of a test".encode(), ctypes.c_void_p(builder), ctypes.c_void_p(status)
    )
