"""Step time, memory and first step of every benchmark model: float32, the Keras policy,
TensorFlow's own pass, amp_tf.

``python -m benchmarks.step_time`` measures and prints the table.
"""
