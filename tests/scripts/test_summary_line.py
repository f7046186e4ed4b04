"""The scripts read amp_tf's summary line; here they read what the line may look like."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "scripts"))

import summary_line


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        (
            "I1120 08:49:26.1 1 x.py:1] amp_tf: 14 graphs, 1,234 of 5,678 nodes converted, 321 casts",
            (14, 1234, 5678, 321),
        ),
        ("INFO:amp_tf: 1 graph, 3 of 9 nodes converted to bfloat16, 1 cast added", (1, 3, 9, 1)),
        ("amp_tf: 2 graphs, 0 of 12 nodes converted, 0 casts: no op on the allow list", (2, 0, 12, 0)),
    ],
)
def test_reads_counts_with_and_without_separators(line: str, numbers: tuple[int, ...]) -> None:
    summary = summary_line.find(f"something else\n{line}\nmore\n")
    assert summary is not None
    assert (summary.graphs, summary.converted, summary.total, summary.casts) == numbers


def test_keeps_the_reason_in_the_text() -> None:
    summary = summary_line.find("amp_tf: 2 graphs, 0 of 12 nodes converted, 0 casts: too small")
    assert summary is not None
    assert summary.text.endswith("too small")


def test_no_line_gives_none() -> None:
    assert summary_line.find("amp_tf: second plugin found; stepping back\n12 of 12 nodes\n") is None


def test_of_several_processes_the_last_counts() -> None:
    log = "amp_tf: 1 graph, 1 of 2 nodes, 1 cast\namp_tf: 5 graphs, 7 of 8 nodes, 2 casts\n"
    summary = summary_line.find(log)
    assert summary is not None
    assert summary.graphs == 5
