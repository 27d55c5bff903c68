#!/usr/bin/env bash
# Prepares data/{train,dev,eval} and the word lexicon (options: local/data.sh --help).
set -euo pipefail
declare -A given=()
for name in AMI AMI_TEXT FISHER; do
    [ -z "${!name+set}" ] || given[${name}]=${!name}
done
. ./db.sh
for name in "${!given[@]}"; do printf -v "${name}" '%s' "${given[${name}]}"; done
. ./path.sh
# options come later, and so win
"${PYTHON}" local/ami_data.py --ami "${AMI:-}" --ami_text "${AMI_TEXT:-}" --fisher "${FISHER:-}" "$@"
