#!/usr/bin/env bash
# The experiments of conf/plan.yaml, stage by stage (see README.md): `./run.sh --help`.
set -euo pipefail
. ./path.sh
. ./cmd.sh
exec "${PYTHON}" -m lab --plan conf/plan.yaml "$@"
