"""`python -m espnet_bayeslm -m espnet2.bin.X ...`: an ESPnet program with our LMs."""

import sys

if __name__ == "__main__":
    from espnet_bayeslm.training.launch import launch

    launch(sys.argv[1:])
elif __name__ == "__mp_main__":
    # A worker that an ESPnet program spawned.
    from espnet_bayeslm import register

    register()
