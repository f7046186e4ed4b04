from __future__ import annotations

import pytest
import tensorflow as tf

from amp_tf.hooks.process import state, summary
from amp_tf.oplists.hardware import Hardware


def test_everything_that_is_known_of_the_cpu_is_known_in_the_hooks(monkeypatch):
    cpu = Hardware(cpu_has_bf16=True, cpu_has_avx512=True)
    monkeypatch.setattr(Hardware, "detect_cpu", lambda: cpu)
    monkeypatch.setattr(state, "_gpu_capabilities", lambda: ((8, 0),))
    assert state.hardware.__wrapped__() == Hardware(((8, 0),), cpu_has_bf16=True, cpu_has_avx512=True)


@pytest.mark.parametrize("is_on", [True, False])
def test_the_report_says_of_gpus_that_have_it_whether_tf32_is_on(monkeypatch, is_on):
    switch = tf.config.experimental.enable_tensor_float_32_execution
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    monkeypatch.setattr(state, "hardware", lambda: Hardware(((7, 0), (8, 0), (9, 0))))
    try:
        switch(is_on)
        _, *gpus = summary._devices(has_graphs=True)
    finally:
        switch(before)
    assert [gpu["tf32"] for gpu in gpus] == [None, is_on, is_on]
