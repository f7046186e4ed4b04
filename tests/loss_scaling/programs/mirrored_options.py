"""Settings of the inner optimizer with which the program ``mirrored`` trains. No TensorFlow here: tests read it."""

OPTIONS = {
    "plain": {},
    "accumulation": {"gradient_accumulation_steps": 2},
    "ema_overwrite": {"use_ema": True, "ema_overwrite_frequency": 2},
    "accumulation_and_ema": {"gradient_accumulation_steps": 2, "use_ema": True, "ema_overwrite_frequency": 2},
    "clipnorm": {"clipnorm": 0.5},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "clipvalue": {"clipvalue": 0.1},
    "weight_decay": {"weight_decay": 0.1},
}
