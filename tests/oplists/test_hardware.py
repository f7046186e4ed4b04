"""The hardware decides which types it supports, and which table of costs counts on it."""

import dataclasses
import sys
import types
import warnings

import pytest

from amp_tf.errors import ConfigError
from amp_tf.oplists import hardware
from amp_tf.oplists.cost_tables import SHIPPED
from amp_tf.oplists.hardware import Hardware
from tests.as_cpu import onednn

pytestmark = pytest.mark.cpu_dependent


@pytest.mark.parametrize(
    ("text", "has_bf16"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 amx_int8\n", True),
        ("processor\t: 0\nflags\t\t: fpu avx512f amx_bf16\n", True),
        ("processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n", True),
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_vnni\n", False),
        ("processor\t: 0\nmodel name\t: bf16 9000\nflags\t\t: fpu\n", False),
        ("processor\t: 0\nflags\t\t: fpu avx512_bf16_lookalike\n", False),
        ("", False),
        (None, False),
    ],
)
def test_the_cpus_flags_decide(monkeypatch, tmp_path, text, has_bf16):
    cpu(monkeypatch, tmp_path, text)
    assert Hardware.detect_cpu().cpu_has_bf16 == has_bf16


#: The CPU's flags, an Arm CPU's part, TF_ENABLE_ONEDNN_OPTS, and whether oneDNN is on.
ONEDNN = """
    avx2 fma | | | False
    avx2 avx512f | | | False
    avx2 avx_vnni | | | True
    avx512f avx512_bf16 | | | True
    avx512f avx512_bf16 | | 0 | False
    avx512f avx512_bf16 | | False | False
    avx2 | | 1 | True
    avx2 | | true | True
    avx2 | | yes | False
    asimd bf16 | 0xd40 | | True
    asimd bf16 | 0xd4f | | False
"""


@pytest.mark.parametrize("row", ONEDNN.strip().splitlines())
def test_onednn_is_on_where_tensorflow_turns_it_on(row):
    flags, arm_part, setting, expected = map(str.strip, row.split("|"))
    assert str(hardware.has_onednn(frozenset(flags.split()), arm_part, setting)) == expected


def test_onednn_is_on_where_this_tensorflow_says_so():
    hardware.cpu_info.cache_clear()
    assert Hardware.detect_cpu().has_onednn == onednn.is_on()


@pytest.mark.parametrize(
    ("capabilities", "has_f16"),
    [
        ((), False),
        (((7, 0),), True),
        (((10, 0), (8, 6)), True),
        (((6, 1),), False),
        (((8, 0), (6, 0)), False),
    ],
)
def test_every_gpu_must_be_fast_in_16_bit(capabilities, has_f16):
    found = Hardware(gpu_capabilities=capabilities)
    assert found.has_gpu == bool(capabilities)
    assert found.gpu_has_f16 == has_f16


@pytest.mark.parametrize("wrong", ["7.0", (7, 0), ((7, 0, 0),), (("7", "0"),), [None], None])
def test_what_is_no_row_of_pairs_is_refused(wrong):
    told = r"^Hardware\.gpu_capabilities: .* is not a list of compute capabilities\. Write a"
    with pytest.raises(ConfigError, match=told):
        Hardware(gpu_capabilities=wrong)


@pytest.fixture(autouse=True)
def caches(monkeypatch, tmp_path):
    """An empty cache folder; what was found before does not count."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    yield tmp_path
    forget()


def forget():
    hardware.cpu_info.cache_clear()
    hardware.costs_here.cache_clear()


def cpu(monkeypatch, tmp_path, text):
    """Makes this a machine with such a ``/proc/cpuinfo``; ``None`` for one without the file."""
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(hardware, "_CPU_INFO", tmp_path / "cpuinfo")
    forget()


ZEN5 = (
    "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel name\t: AMD "
    "EPYC\nflags\t: avx512_bf16\n\n"
)


def test_a_kind_of_cpu_that_was_measured_has_its_shipped_table(monkeypatch, tmp_path):
    cpu(monkeypatch, tmp_path, ZEN5)
    assert dataclasses.asdict(hardware.costs_here()) == dataclasses.asdict(SHIPPED)


@pytest.mark.parametrize(
    ("flags", "gains"), [("avx512_bf16", False), ("amx_bf16 avx512_bf16", True)]
)
def test_an_intel_cpu_gains_by_bfloat16_with_amx_alone(monkeypatch, tmp_path, flags, gains):
    text = f"vendor_id\t: GenuineIntel\ncpu family\t: 6\nflags\t: avx512f {flags}\n"
    cpu(monkeypatch, tmp_path, text)
    found = Hardware.detect_cpu()
    in_float32, in_f16 = found.costs.of_product("MatMul", 1e12, 1)
    assert found.cpu_has_bf16
    assert found.cpu_gains == gains
    assert (in_float32 > 2 * in_f16) == gains


@pytest.mark.parametrize(
    ("text", "gains"),
    [
        (
            "vendor_id\t: GenuineIntel\ncpu family\t: 19\nmodel name\t: Xeon\nflags\t: amx_bf16 "
            "avx512_bf16\n",
            True,
        ),
        (
            "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel name\t: Core\nflags\t: avx2\n",
            False,
        ),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd40\nFeatures\t: bf16 asimdhp\n", True),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd4f\nFeatures\t: bf16 asimdhp\n", False),
    ],
    ids=["a later AMX", "AVX2", "Arm", "Arm without oneDNN"],
)
def test_of_another_kind_of_cpu_the_careful_choice_is_made_and_said(
    monkeypatch, tmp_path, text, gains
):
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    cpu(monkeypatch, tmp_path, text)
    found = Hardware.detect_cpu()
    assert found.cpu_gains == gains
    in_float32, in_f16 = found.costs.of_product("MatMul", 1e12, 1)
    assert 1.2 < in_float32 / in_f16 < 1.6  # 2.1 in the table
    assert "amp-tf calibrate measures this one" in found.costs.source


def calibrated(text):
    """Writes this CPU's own table."""
    path = hardware.cache_file()
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_what_was_measured_here_counts_before_what_is_shipped():
    calibrated(dataclasses.replace(SHIPPED, source="measured here").to_json())
    assert Hardware.detect_cpu().costs.source == "measured here"


def test_a_broken_file_is_told_once_and_the_shipped_table_counts():
    path = calibrated("{}")
    with pytest.warns(UserWarning, match="not a table of costs") as caught:
        found = hardware.costs_here()
    assert str(path) in str(caught[0].message)
    assert found.source == hardware.shipped_costs().source
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hardware.costs_here()


def test_the_file_has_one_name_before_tensorflow_is_imported_and_after(monkeypatch):
    """amp-tf calibrate asks before, a program after."""
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    before = hardware.cache_file()
    release_candidate = types.ModuleType("tensorflow")
    release_candidate.__version__ = "2.99.0-rc1"  # pip: 2.99.0rc1
    monkeypatch.setitem(sys.modules, "tensorflow", release_candidate)
    assert hardware.cache_file() == before


def test_a_measurement_counts_for_its_cpu_cores_tensorflow_and_onednn(monkeypatch, tmp_path):
    files = {hardware.cache_file()}
    monkeypatch.setattr(hardware.os, "sched_getaffinity", lambda _: range(64))
    files.add(hardware.cache_file())
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    files.add(hardware.cache_file())
    monkeypatch.setattr(hardware, "_tensorflow", lambda: "2.99")
    files.add(hardware.cache_file())
    cpu(monkeypatch, tmp_path, ZEN5.replace("EPYC", "another"))
    files.add(hardware.cache_file())
    assert len(files) == 5
