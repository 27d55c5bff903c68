#!/usr/bin/env bash
# Adapts one of ESPnet's own LMs to ever more text of the target, in three ways, each with three
# values of its setting; which is best is seen on dev. What was done is not done again.
set -euo pipefail

backbone=seq_rnn   # or transformer
data=data/adaptation
exp=exp/adaptation
ngpu=0
while [ $# -gt 0 ]; do
    case "$1" in
        --backbone | --data | --exp | --ngpu)
            [ $# -ge 2 ] || { echo "adapt.sh: error: the option $1 needs a value" >&2; exit 1; }
            printf -v "${1#--}" '%s' "$2"
            shift 2
            ;;
        *) echo "adapt.sh: error: unknown option '$1' (--backbone, --data, --exp, --ngpu)" >&2; exit 1 ;;
    esac
done
. ./path.sh
bayeslm="${PYTHON} -m espnet_bayeslm.bin.bayeslm"
source=${exp}/general_${backbone}

train() { # EXP TRAIN_TEXT DEV_TEXT CONFIG [option ...]
    [ -e "$1/.done" ] && return 0
    mkdir -p "$1"
    echo "$(date '+%Y-%m-%dT%H:%M:%S') (adapt.sh) $1"
    # shellcheck disable=SC2086
    ${bayeslm} train --exp "$1" --train_text "${data}/$2.txt" --valid_text "${data}/$3.txt" \
        --config "conf/$4.yaml" --ngpu "${ngpu}" "${@:5}" > "$1/train.out" 2>&1 ||
        { tail -n 20 "$1/train.out" >&2; echo "adapt.sh: error: training of $1 failed" >&2; exit 1; }
    touch "$1/.done"
}

train "${source}" general general_dev "general_${backbone}" --token_type bpe --vocab_size 2000

# epochs: about 80, 210, 340 and 1,030 steps
for share in 1:20 5:12 10:10 100:3; do
    adapt() { # NAME CONFIG [option ...]
        train "${exp}/${backbone}/$1_${share%:*}" "train_${share%:*}" dev "adapt_${backbone}_$2" \
            --from "${source}" --max_epoch "${share#*:}" "${@:3}"
    }
    for lr in 0.0001 0.0003 0.001; do
        adapt "finetune@${lr}" point --optim_conf "lr=${lr}"
    done
    for variance in 0.0001 0.001 0.01; do
        adapt "l2@${variance}" point --model_conf regularizer=map --lm_conf "prior_variance=${variance}"
        adapt "bayes@${variance}" bayes --lm_conf "prior_variance=${variance}"
    done
done

for folder in "${source}" "${exp}/${backbone}"/*@*; do
    for set in dev test; do
        output=${exp}/perplexity/${backbone}/$(basename "${folder}")/${set}.json
        [ -e "${output}" ] || echo "perplexity --text ${data}/${set}.txt --lm ${folder} --output ${output}"
    done
done | "${PYTHON}" local/batch.py >> "${exp}/perplexity_${backbone}.log" 2>&1
