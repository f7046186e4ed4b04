"""Times a program's own steps in float32 and with amp_tf, in turns, and says which is faster.

``amp-tf time -- python train.py`` runs the program in rounds, in each once without amp_tf and once
with it (``rounds``). Steps are measured by the clock of reports (:mod:`amp_tf.hooks.step_times`);
once there are enough, the program ends, as by ``sys.exit`` (``recording``).
"""
