"""A process that runs programs.

``names WAYS REGEX`` prints the names of those that it finds. ``run MODES WAYS FILE RULES`` runs
those whose names stand on its stdin, without some rows of the painting's rules; with ``briefly``
behind, ideal programs only where they decide.
"""

import faulthandler
import logging
import sys
import time
import warnings
from pathlib import Path

PATIENCE = 600  # seconds for one program, then the process ends with a trace


def main():
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    from tests import left_out
    from tests.pretending import pretend
    from tests.truth import catalogue, modes, report, runner

    what, *more = sys.argv[1:]
    if what == "names":
        for program in catalogue.all_programs(more[1]):
            if program.compiled or "graph" in more[0]:
                print(program.name)
        return
    wanted = more[0].split(",")
    ways = more[1].split(",")
    path = Path(more[2])
    rules = [rule for rule in more[3].split(",") if rule]
    briefly = more[4:] == ["briefly"]
    names = set(sys.stdin.read().split("\n"))
    if modes.MULTIPLIES_BF16:
        pretend()
    modes.check_that_graphs_are_converted()
    with left_out.without(rules):
        for program in catalogue.all_programs():
            if program.name not in names:
                continue
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            start = time.monotonic()
            rows = list(runner.rows_of(program, wanted, ways, briefly))
            runner.append(path, rows)
            verdict = "FAIL" if any(map(report.is_defect, rows)) else "ok"
            seconds = time.monotonic() - start
            print(f"{verdict:4} {program.name:50} {seconds:5.1f} s", flush=True)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
