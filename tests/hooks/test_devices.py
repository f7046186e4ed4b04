from __future__ import annotations

from amp_tf.hooks import devices
from amp_tf.oplists.hardware import Hardware


def test_everything_that_is_known_of_the_cpu_is_known_in_the_hooks(monkeypatch):
    cpu = Hardware(cpu_has_bf16=True, cpu_has_avx512=True)
    monkeypatch.setattr(Hardware, "detect_cpu", lambda: cpu)
    monkeypatch.setattr(devices, "_gpu_capabilities", lambda: ((8, 0),))
    assert devices.hardware.__wrapped__() == Hardware(((8, 0),), cpu_has_bf16=True, cpu_has_avx512=True)
