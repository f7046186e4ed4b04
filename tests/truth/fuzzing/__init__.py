"""Random programs, judged by the yardstick: as data, as graphs of many at once, with the cause of
what is far off.
"""
