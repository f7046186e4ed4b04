"""Functions that XLA compiles, which no graph optimizer sees."""
