"""The command line: parse, call, print, exit status."""

#: The modules of this package that are commands: each has ``add_parser(subparsers)`` and ``run(args) -> int``.
COMMANDS = ("run", "rewrite", "explain", "compare", "tune", "report", "calibrate", "doctor")
