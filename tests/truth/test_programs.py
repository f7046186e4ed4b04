"""A share of the programs, in all modes that convert on this CPU: none is above the limit of the
yardstick unless that limit is named.
"""

import sys
from pathlib import Path

import pytest

from tests import processes
from tests.truth import report, runner
from tests.truth.catalogue import sample
from tests.truth.modes import AVAILABLE

ROOT = Path(__file__).resolve().parents[2]
WORKER = (sys.executable, "-m", "tests.truth.worker")

pytestmark = [pytest.mark.slow, pytest.mark.quick]


@pytest.fixture(scope="module")
def rows(tmp_path_factory, request):
    path = tmp_path_factory.mktemp("truth") / "rows.jsonl"
    listed = sample()
    if request.config.getoption("quick"):
        listed = listed[::3]
    command = [*WORKER, "run", ",".join(AVAILABLE), "graph", str(path), "", "briefly"]
    processes.run(command, cwd=ROOT, check=True, input="\n".join(listed), text=True)
    found = list(runner.read(path))
    assert {row.program for row in found} == set(listed)
    return found


@pytest.mark.parametrize("mode", AVAILABLE)
def test_16_bit_is_as_near_to_float32_as_products_allow(rows, mode):
    defects = [row for row in rows if row.mode == mode and report.is_defect(row)]
    assert not defects, "\n".join(report.table_of(defects))


@pytest.mark.parametrize("mode", AVAILABLE)
def test_something_was_16_bit(rows, mode):
    """Otherwise the test above could not fail."""
    rounded = {row.program for row in rows if row.mode == mode and row.error > 2.0**-14}
    assert len(rounded) > len({row.program for row in rows}) / 2
