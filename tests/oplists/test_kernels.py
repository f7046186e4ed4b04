from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest
from tensorflow.python.framework import op_def_registry
from tensorflow.python.util import _pywrap_kernel_registry

from amp_tf.oplists import kernels
from amp_tf.oplists.kernels import SURE, Kernel, Types, finder, has_kernel, is_known, kernels_of, question
from amp_tf.oplists.table import CPU, CUDA, KERNELS_DECIDE, ROWS

FLOAT, DOUBLE, HALF, BFLOAT16, STRING, INT32 = 1, 2, 19, 14, 7, 3
TABLE_OF = {"CPU": CPU, "GPU": CUDA}
# For attributes that may have every type; index types are among them.
OTHER_TYPES = (1, 2, 3, 4, 6, 7, 8, 9, 10, 14, 18, 19, 20, 21)


@pytest.fixture
def fresh() -> Iterator[None]:
    """What is remembered of earlier questions would hide how a question is asked."""
    forget()
    yield
    forget()


def forget() -> None:
    finder.cache_clear()
    kernels._has_kernel.cache_clear()


def type_attributes(op: str) -> dict[str, tuple[int, ...]]:
    """The type attributes of a registered op and the types that each may have; none for ops that call functions."""
    definition = op_def_registry.get(op)
    if definition is None or any("func" in attr.type for attr in definition.attr):
        return {}
    typed = [attr for attr in definition.attr if attr.type in ("type", "list(type)")]
    return {attr.name: tuple(attr.allowed_values.list.type) or OTHER_TYPES for attr in typed}


def by_scan(op: str, device_type: str, types: Types) -> bool:
    return any(kernel.accepts(dict(types)) for kernel in kernels_of(op, device_type))


def mixtures(op: str) -> Iterator[Types]:
    """Each type attribute as float, half, bfloat16 and double, one by one and all at once, the others as they start."""
    domains = type_attributes(op)
    first = {attr: FLOAT if FLOAT in allowed else allowed[0] for attr, allowed in domains.items()}
    for number in (FLOAT, HALF, BFLOAT16, DOUBLE):
        for attrs in [[attr] for attr in domains] + [list(domains)]:
            yield tuple((attr, (number if attr in attrs else first[attr],)) for attr in domains)


def conversions(op: str, device_type: str) -> Iterator[Types]:
    """All that painting may ask of nodes that run in float32: some of their float types converted."""
    domains = type_attributes(op)
    for numbers in itertools.product(*domains.values()):
        types = tuple((attr, (number,)) for attr, number in zip(domains, numbers, strict=True))
        if FLOAT in numbers and by_scan(op, device_type, types):
            for wanted in (HALF, BFLOAT16):
                able = [attr for attr in domains if wanted in domains[attr] or op in KERNELS_DECIDE]
                yield from converted(types, able, wanted)


def converted(types: Types, attrs: Sequence[str], wanted: int) -> Iterator[Types]:
    floats = [attr for attr, (number,) in types if number == FLOAT and attr in attrs]
    for count in range(1, len(floats) + 1):
        for chosen in itertools.combinations(floats, count):
            yield tuple((attr, (wanted,) if attr in chosen else numbers) for attr, numbers in types)


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


def test_every_entry_of_a_list_of_types_must_be_allowed():
    assert has_kernel("SaveV2", "CPU", {"dtypes": [FLOAT, INT32]})
    kernel = Kernel((("T", frozenset({FLOAT, HALF})),))
    assert kernel.accepts({"T": [FLOAT, HALF]})
    assert not kernel.accepts({"T": [FLOAT, BFLOAT16]})


def test_a_constraint_on_an_attribute_that_the_op_lacks_is_never_met():
    assert not Kernel((("T", frozenset({HALF})), ("U", frozenset({FLOAT})))).accepts({"T": [HALF]})
    assert not has_kernel("TopK", "CPU", {"T": [FLOAT]})  # its kernels constrain TopKV2's index_type


def test_kernels_with_a_label_do_not_count():
    from tensorflow.python.framework import kernels

    for op in ("DataFormatDimMap", "_MklMatMul", "MatMul"):
        all_of_op = kernels.get_registered_kernels_for_op(op).kernel
        unlabelled = [kernel for kernel in all_of_op if not kernel.label and kernel.device_type in ("CPU", "DEFAULT")]
        assert len(kernels_of(op, "CPU")) == len(unlabelled)


def test_a_device_type_that_this_tensorflow_knows_nothing_about_is_not_judged():
    assert not is_known("ABACUS")
    assert has_kernel("AvgPool3D", "ABACUS", {"T": [HALF]})
    assert is_known("CPU")


def test_both_ways_to_ask_agree_on_every_op_of_the_table(capfd):
    find = finder()
    assert find is not None
    differing = [
        (op, device_type, types)
        for op in sorted({row.op for row in ROWS})
        for device_type in TABLE_OF
        for types in mixtures(op)
        if bool(find(question(op, device_type, types))) != by_scan(op, device_type, types)
    ]
    capfd.readouterr()  # TensorFlow's words about the many that do not exist
    assert differing == []


def test_what_the_quick_way_is_asked_exists_so_that_tensorflow_prints_nothing():
    find = finder()
    assert find is not None
    asked = [
        (op, device_type, types)
        for device_type, table in TABLE_OF.items()
        if is_known(device_type)
        for op in sorted(op for of_table, op in SURE if of_table == table)
        for types in conversions(op, device_type)
    ]
    assert len(asked) > 500
    assert [row for row in asked if not find(question(*row))] == []


def test_an_op_of_the_table_is_found_without_going_over_all_kernels(fresh, monkeypatch):
    monkeypatch.setattr(kernels, "kernels_of", lambda *_: pytest.fail("went over all kernels"))
    assert has_kernel("Conv2D", "CPU", {"T": [BFLOAT16]})
    assert has_kernel("GreaterEqual", "CPU", {"T": [BFLOAT16], "": [10]})  # its result is bool in every node


@pytest.mark.parametrize("op", ["AvgPool3D", "_MklMatMul", "NoSuchOp"])
def test_an_op_that_may_lack_a_kernel_is_asked_about_in_silence(op, fresh, monkeypatch):
    monkeypatch.setattr(kernels, "finder", lambda: pytest.fail("TensorFlow may print a warning"))
    assert not has_kernel(op, "CPU", {"T": [HALF]})


@pytest.mark.parametrize("broken", ["gone", "changed", "blind"])
def test_a_tensorflow_without_the_quick_way_is_asked_the_other_way(broken, fresh, monkeypatch):
    if broken == "gone":
        monkeypatch.delattr(_pywrap_kernel_registry, "TryFindKernelClass")
    elif broken == "changed":
        monkeypatch.setattr(_pywrap_kernel_registry, "TryFindKernelClass", lambda op, device: b"KernelOf" + op)
    else:
        monkeypatch.setattr(_pywrap_kernel_registry, "TryFindKernelClass", lambda node: b"")
    assert finder() is None
    assert has_kernel("Conv2D", "CPU", {"T": [BFLOAT16]})
    assert not has_kernel("Conv2D", "CPU", {"T": [STRING]})
