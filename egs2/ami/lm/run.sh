#!/usr/bin/env bash
# The paper's experiments on AMI (see README.md): `./run.sh --help`.
set -euo pipefail
exec ./experiment.sh --order 3 --dev dev --test eval \
    --tables "main 1 3 4 5 data_size model_size dropout embedding" "$@"
