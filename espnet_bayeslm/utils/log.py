"""The package's logger.

A call of the root's own functions (`logging.info`) would configure the root where nobody has, and
the `logging.basicConfig` of ESPnet's programs would then do nothing.
"""

import logging

LOG = logging.getLogger("espnet_bayeslm")
