from __future__ import annotations

import pathlib

import pytest

from amp_tf.errors import ConfigError
from amp_tf.oplists import hardware
from amp_tf.oplists.hardware import Hardware
from tests.as_cpu import onednn


@pytest.fixture
def cpu_with(monkeypatch, tmp_path):
    """Whether a CPU with this ``/proc/cpuinfo`` has bfloat16; ``None`` for a machine without the file."""

    def detect(text):
        if text is not None:
            (tmp_path / "cpuinfo").write_text(text)
        monkeypatch.setattr(hardware, "_CPU_INFO", tmp_path / "cpuinfo")
        hardware.cpu_info.cache_clear()
        return Hardware.detect_cpu().cpu_has_bf16

    yield detect
    hardware.cpu_info.cache_clear()


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
def test_the_cpus_flags_decide(cpu_with, text, has_bf16):
    assert cpu_with(text) == has_bf16


def test_this_machine_agrees_with_its_own_flags():
    path = pathlib.Path("/proc/cpuinfo")
    words = set(path.read_text(encoding="ascii", errors="replace").split()) if path.exists() else set()
    hardware.cpu_info.cache_clear()
    assert Hardware.detect_cpu().cpu_has_bf16 == bool(words & hardware.BF16_CPU_FLAGS)
    assert Hardware.detect_cpu().gpu_capabilities == ()


@pytest.mark.parametrize(
    ("flags", "arm_part", "setting", "expected"),
    [
        ("avx2 fma", "", "", False),
        ("avx2 avx512f", "", "", False),
        ("avx2 avx_vnni", "", "", True),
        ("avx512f avx512_bf16", "", "", True),
        ("avx512f avx512_bf16", "", "0", False),
        ("avx512f avx512_bf16", "", "False", False),
        ("avx2", "", "1", True),
        ("avx2", "", "true", True),
        ("avx2", "", "yes", False),
        ("asimd bf16", "0xd40", "", True),
        ("asimd bf16", "0xd4f", "", False),
    ],
)
def test_onednn_is_on_where_tensorflow_turns_it_on(flags, arm_part, setting, expected):
    assert hardware.has_onednn(frozenset(flags.split()), arm_part, setting) == expected


def test_onednn_is_on_where_this_tensorflow_says_so():
    hardware.cpu_info.cache_clear()
    assert Hardware.detect_cpu().has_onednn == onednn.is_on()


@pytest.mark.parametrize(
    ("capabilities", "has_gpu", "has_f16"),
    [
        ((), False, False),
        (((7, 0),), True, True),
        (((9, 0),), True, True),
        (((10, 0), (8, 6)), True, True),
        (((6, 1),), True, False),
        (((8, 0), (6, 0)), True, False),
    ],
)
def test_every_gpu_must_be_fast_in_16_bit(capabilities, has_gpu, has_f16):
    found = Hardware(gpu_capabilities=capabilities)
    assert (found.has_gpu, found.gpu_has_f16) == (has_gpu, has_f16)


@pytest.mark.parametrize("wrong", ["7.0", (7, 0), ((7, 0, 0),), (("7", "0"),), (7.0,), [None], None, 7])
def test_what_is_no_row_of_pairs_is_refused(wrong):
    with pytest.raises(
        ConfigError, match=r"^Hardware\.gpu_capabilities: .* is not a list of compute capabilities\. Write a"
    ):
        Hardware(gpu_capabilities=wrong)


def test_a_list_of_lists_is_kept_as_pairs():
    assert Hardware(gpu_capabilities=[[8, 0]]) == Hardware(gpu_capabilities=((8, 0),))
