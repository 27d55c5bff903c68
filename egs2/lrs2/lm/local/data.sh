#!/usr/bin/env bash
# Prepares data/{train,val,test} and the lexicon from LRS2 (options: see local/data.sh --help).
set -euo pipefail
. ./db.sh
. ./path.sh
# an option --lrs2 comes later, and so wins
"${PYTHON}" local/lrs2_data.py --lrs2 "${LRS2}" "$@"
