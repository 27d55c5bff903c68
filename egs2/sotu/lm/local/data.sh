#!/usr/bin/env bash
# Prepares data/{train,dev,test} (options: see local/data.py --help).
set -euo pipefail
. ./db.sh
. ./path.sh
"${PYTHON}" local/data.py "$@"
