#!/usr/bin/env bash
# Puts 20-best lists of all sets and conditions into data/nbest (options: local/nbest.sh --help).
set -euo pipefail
declare -A given=()
for name in NBEST NBEST_TEXT; do
    [ -z "${!name+set}" ] || given[${name}]=${!name}
done
. ./db.sh
for name in "${!given[@]}"; do printf -v "${name}" '%s' "${given[${name}]}"; done
. ./path.sh
[ -n "${NBEST:-}" ] || [[ " $* " =~ " --"(nbest|help)" " ]] ||
    { echo "no NBEST in db.sh or the environment: perplexities only" >&2; exit 0; }
# options come later, and so win
"${PYTHON}" -m lab.lists --nbest "${NBEST:-}" --references "${NBEST_TEXT:-}" "$@"
