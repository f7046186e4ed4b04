"""A process that is told of another CPU finds that one, and so do those that it starts."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from tensorflow.python.platform import sysconfig

from tests.as_cpu import overwriting

pytestmark = [
    pytest.mark.cpu_dependent,
    pytest.mark.skipif(
        platform.machine() != "x86_64", reason="the features that are hidden are those of x86-64"
    ),
]
HERE = Path(__file__).resolve().parent
AVX2 = 14
WITH_TENSORFLOW = """
import subprocess, sys
import tensorflow as tf
from amp_tf.oplists.hardware import Hardware, cpu_flags
from tests.as_cpu import onednn, overwriting
has_feature = overwriting.function(onednn._framework(), overwriting.HAS_FEATURE)
print([feature for feature in range(64) if has_feature(feature)])
print(onednn.is_on(), onednn.computes_bfloat16(), *sorted(cpu_flags()))
print(tf.reduce_sum(tf.matmul(tf.ones((2, 3)), tf.ones((3, 2)))).numpy())
print(Hardware.detect_cpu().has_onednn, flush=True)
if sys.argv[1:]:
    sys.exit(subprocess.run([sys.executable, "-c", sys.argv[1]]).returncode)
"""


def test_a_process_and_its_children_find_a_cpu_without_avx512_and_its_kin():
    of = overwriting.library(Path(sysconfig.get_lib()))
    has_feature = overwriting.function(of, overwriting.HAS_FEATURE)
    environ = {
        "PYTHONPATH": f"{HERE}:{HERE.parents[1]}",
        "PATH": "/usr/bin:/bin",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    command = [sys.executable, "-c", WITH_TENSORFLOW, WITH_TENSORFLOW]
    lines = subprocess.check_output(command, env=environ, text=True, timeout=240).splitlines()
    for features, flags, product, detected in (lines[:4], lines[4:]):
        assert json.loads(features) == [feature for feature in range(27) if has_feature(feature)]
        assert AVX2 in json.loads(features)
        is_on, computes_bfloat16, *names = flags.split()
        assert (is_on, computes_bfloat16, detected) == ("False", "False", "False")
        assert "avx2" in names
        assert not [name for name in names if name.startswith(("avx512", "amx", "avx_"))]
        assert product == "12.0"


def test_what_an_overwritten_function_answers_ends_with_the_block():
    of = overwriting.library(Path(sysconfig.get_lib()))
    is_on = overwriting.function(of, overwriting.ONEDNN_IS_ON)
    before = is_on()
    for value in (True, False):
        with overwriting.answering(of, overwriting.ONEDNN_IS_ON, value):
            assert is_on() is value
        assert is_on() is before


def test_a_function_that_is_not_there_is_named():
    with pytest.raises(overwriting.OverwritingError, match=r"^this TensorFlow exports no nothing$"):
        overwriting.overwrite(overwriting.library(Path(sysconfig.get_lib())), "nothing", b"")
