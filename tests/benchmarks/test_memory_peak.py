"""What is live at the peak: on made-up events, and in a process that really trains."""

from __future__ import annotations

import pytest

from benchmarks import memory_peak
from benchmarks.memory_peak import MIB, Peak, Tensor
from benchmarks.step_time.traces import Event


def event(kind: str, addr: int, asked: int = 0, given: int = 0, node: str = "", data_type: int = 0) -> Event:
    block = {"requested_bytes": asked * MIB, "allocation_bytes": given * MIB, "tf_op": node, "data_type": data_type}
    return Event(f"Memory{kind}", 0, 0.0, {"addr": addr, **(block if kind == "Allocation" else {})})


def test_peak_is_where_most_was_asked_for_and_counts_what_was_live_there():
    events = [
        event("Deallocation", 9),  # allocated before the run
        event("Allocation", 1, 100, 200, "model/a", 1),
        event("Deallocation", 1),
        event("Allocation", 1, 80, 80, "model/b", 14),
        Event("model/c:MatMul", 0, 1.0, {}),
        event("Allocation", 2, 90, 100, "model/c"),
        event("Deallocation", 1),
    ]
    found = memory_peak.find_peak(events)
    assert found == Peak(170, 200, (Tensor("model/c", 90, ""), Tensor("model/b", 80, "bfloat16")))
    assert memory_peak.table({"amp_tf": found}, 2).splitlines()[2:] == [
        "| live, MiB | 170 |",
        "| given, MiB | 200 |",
        "| 1 | 90.0 model/c |",
        "| 2 | 80.0 bfloat16 model/b |",
    ]


def test_a_real_step_shows_the_tensors_of_its_own_nodes(capsys):
    assert memory_peak.main(["wide_mlp", "--size", "tiny", "--batch", "8192", "--modes", "float32"]) == 0
    text = capsys.readouterr().out
    assert "**MLP, 2048 wide, fit, batch 8192**" in text
    live, given = (float(line.split("|")[2]) for line in text.splitlines() if "MiB" in line)
    assert 0 < live <= given
    assert "float32 " in text.splitlines()[6]


def test_process_that_fails_says_why():
    job = {"model": "no_such_model", "size": "tiny", "batch": None, "precision": "bfloat16", "mode": "float32"}
    with pytest.raises(RuntimeError, match="no_such_model"):
        memory_peak.measure(job)
