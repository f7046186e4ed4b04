"""The command line: parse, call, print, exit status."""

MODULES = ("run", "models", "compare", "tune", "calibrate", "doctor")  #: of this package; each has ``add_parsers``
COMMANDS = ("run", "rewrite", "explain", "report", "compare", "tune", "calibrate", "doctor")  #: what these add
