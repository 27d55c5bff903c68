# shellcheck shell=bash
# How jobs are run. In an ESPnet checkout its run.pl, or another of its programs that you set
# here (queue.pl, slurm.pl); elsewhere lm.sh runs them itself.
if command -v run.pl > /dev/null; then
    export train_cmd=run.pl
    export cuda_cmd=run.pl
    export decode_cmd=run.pl
fi
