"""`python -m espnet_bayeslm -m espnet2.bin.X ...`: an ESPnet program with our LMs.

`python -m espnet_bayeslm TOOL ...` is `bayeslm TOOL ...`.
"""

import sys

from espnet_bayeslm.bin.bayeslm import TOOLS
from espnet_bayeslm.bin.bayeslm import main as run_bayeslm

if __name__ == "__main__" and sys.argv[1:2] and sys.argv[1] in TOOLS:
    run_bayeslm()
elif __name__ == "__main__":
    from espnet_bayeslm.training.launch import launch

    launch(sys.argv[1:])
elif __name__ == "__mp_main__":
    # A worker that an ESPnet program spawned.
    from espnet_bayeslm import register

    register()
