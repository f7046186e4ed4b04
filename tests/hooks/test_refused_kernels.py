"""What registered 16-bit kernels refuse (:data:`amp_tf.oplists.kernels.REFUSALS`) trains as in float32."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from tests import as_cpu
from tests.hooks import running

SCRIPT = str(running.PROGRAMS / "refused_kernels.py")
CPUS = {"this CPU": {}, "a CPU without AVX-512": as_cpu.variables()}


@functools.cache
def ended(cpu: str, precision: str, folder: Path) -> running.Ended:
    """The program's end, float32 computed by oneDNN."""
    unscaled = {"TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING": "0"}
    mixed = {running.SWITCH: "1", "AMP_TF_PRECISION": precision, **unscaled} if precision else {}
    return running.run([SCRIPT], folder, {"TF_ENABLE_ONEDNN_OPTS": "1", **CPUS[cpu], **mixed})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("refused")


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("cpu", CPUS)
def test_what_kernels_refuse_trains_as_in_float32(cpu: str, precision: str, folder: Path) -> None:
    if cpu != "this CPU" and not (CPUS[cpu] and running.is_installed()):
        pytest.skip("the CPU can be made to look older on x86-64 alone, where amp_tf is installed")
    mixed, plain = ended(cpu, precision, folder), ended(cpu, "", folder)
    assert (mixed.status, plain.status) == (0, 0), mixed.err + plain.err
    assert mixed.warnings == []
    assert mixed.converted > 20
    for kind, losses in plain.result.items():
        assert losses[-1] < losses[0], kind
        # Without oneDNN, bfloat16 kernels keep their sums in bfloat16.
        np.testing.assert_allclose(mixed.result[kind], losses, rtol=0.05, atol=0, err_msg=kind)
