import sys
from pathlib import Path

# The benchmarks are scripts, not part of the installed package: their tests import them from the checkout.
sys.path.insert(0, str(Path(__file__).parents[2]))
