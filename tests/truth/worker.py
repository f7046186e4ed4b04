"""A process that runs programs.

``names WAYS REGEX`` prints the names of those that it finds, ``quick`` of those that pytest runs,
``run MODES WAYS FILE [RULES]`` runs those whose names stand on its stdin, without some rows of the
painting's rules.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
import time
import warnings
from pathlib import Path

PATIENCE = 600  # seconds for one program, then the process ends with a trace


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    from tests import left_out
    from tests.pretending import pretend
    from tests.truth import catalogue, modes, report, runner

    if sys.argv[1] == "names":
        found = catalogue.all_programs(sys.argv[3])
        print(
            *(program.name for program in found if program.compiled or "graph" in sys.argv[2]),
            sep="\n",
        )
        return
    if sys.argv[1] == "quick":
        print(
            *(
                program.name
                for program in filter(catalogue.in_quick_tier, catalogue.all_programs())
            ),
            sep="\n",
        )
        return
    wanted = sys.argv[2].split(",")
    ways = sys.argv[3].split(",")
    path = Path(sys.argv[4])
    names = set(sys.stdin.read().split("\n"))
    pretend()
    modes.check_that_graphs_are_converted()
    with left_out.without(filter(None, ",".join(sys.argv[5:]).split(","))):
        for program in catalogue.all_programs():
            if program.name not in names:
                continue
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            start = time.monotonic()
            rows = list(runner.rows_of(program, wanted, ways))
            runner.append(path, rows)
            print(report.line(program.name, rows, time.monotonic() - start), flush=True)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
