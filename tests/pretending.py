"""A CPU on which every product pays in 16 bit, so that small programs show what ``auto`` makes of
large ones.
"""

import dataclasses

from amp_tf.oplists.cost_tables import SHIPPED, ProductCost
from amp_tf.oplists.hardware import Hardware

_DEAR = ProductCost(rate=1e-3, ns=0.0, start=0.0)

WHERE_PRODUCTS_PAY = Hardware(
    cpu_has_bf16=True,
    cpu_has_avx512=True,
    costs=dataclasses.replace(SHIPPED, products={"MatMul": (_DEAR, SHIPPED.products["MatMul"][1])}),
)


def pretend():
    """Makes this CPU such a one, in the whole process.

    To be called before TensorFlow runs a graph.
    """
    Hardware.detect_cpu = classmethod(lambda cls: WHERE_PRODUCTS_PAY)
