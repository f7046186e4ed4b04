"""Where a model goes wrong in 16 bit: the same step in float32 and as amp_tf rewrites it, in one graph.

The step is traced and made flat (``flattening``); copies of it that share their inputs are put into one graph
(``joining``); reductions in that graph compare them (``instruments``), so that no tensor leaves it; what they say is
judged (``verdicts``), and what would mend it is tried (``findings``).
"""
