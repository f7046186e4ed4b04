"""Functions that XLA compiles, which graph optimizers do not see."""
