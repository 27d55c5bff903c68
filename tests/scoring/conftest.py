import sys
from pathlib import Path

# oracles, and the LMs of the contract test
sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("oracles", "lm")]
