"""What looks at a program from outside: compares, tunes and watches it, and measures this machine.

The core converts without this package and imports nothing of it. The command line imports its tools, and one row of
:mod:`amp_tf.hooks.switch` loads the watchdog by name where the settings ask for it.
"""
