"""What is live at the peak of a process that trains."""

from __future__ import annotations

from benchmarks import memory_peak


def test_a_real_step_shows_the_tensors_of_its_own_nodes(capsys):
    assert memory_peak.main(["wide_mlp", "--size", "tiny", "--batch", "8192", "--modes", "float32"]) == 0
    text = capsys.readouterr().out
    assert "**MLP, 2048 wide, fit, batch 8192**" in text
    live, given = (float(line.split("|")[2]) for line in text.splitlines() if "MiB" in line)
    assert 0 < live <= given
    assert "float32 " in text.splitlines()[6]
