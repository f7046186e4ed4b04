"""Measures the costs of ops on this CPU: the tables of :mod:`amp_tf.oplists.cost_tables`."""
