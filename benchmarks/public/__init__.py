"""Ten programs written after published papers, as their users would write them; they know nothing
of amp_tf.
"""
