#!/usr/bin/env bash
# The paper's experiments on LRS2 (see README.md): `./run.sh --help`.
set -euo pipefail
exec ./experiment.sh --order 4 --dev val --test test --table 6 --tables "6 data_size model_size" "$@"
