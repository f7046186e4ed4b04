"""What only ``auto`` on CPUs needs: what ops cost there, and what is moved so that it costs less.

Nothing here touches a proto. The rewrite imports it where amp_tf chooses the precision of a CPU, and nowhere else.
"""

from amp_tf.cpu.economy import drop_unprofitable
from amp_tf.cpu.folding import fold, lift
from amp_tf.cpu.hoisting import hoist
from amp_tf.cpu.list_shapes import ListShapes

__all__ = ["ListShapes", "drop_unprofitable", "fold", "hoist", "lift"]
