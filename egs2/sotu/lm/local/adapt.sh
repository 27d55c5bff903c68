#!/usr/bin/env bash
# Adapts one of ESPnet's own LMs to ever more text of the target, in three ways, each with a few
# settings; which is best is seen on dev. What was done is not done again.
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
source=${exp}/general_${backbone}
# Bayesian adaptation: all matrices are random (seq_rnn's output projection is the embedding's mean),
# the prior's means are the source LM.
random=(embedding 'all_gates@*')
[ "${backbone}" != transformer ] || random=(embedding 'attention@*' 'ffn@*' 'ffn_out@*' output)
bayes=(--lm_conf prior_variance=0.001 --lm_conf init_std=0.01)
for place in "${random[@]}"; do bayes+=(--lm_conf "uncertainty.${place}=bayes"); done

train() { # EXP TRAIN_TEXT DEV_TEXT CONFIG [option ...]: the command, if it is not done yet
    # ESPnet writes the average of the checkpoints at the very end
    [ -e "$1/valid.loss.ave.pth" ] ||
        echo "train --exp $1 --train_text ${data}/$2.txt --valid_text ${data}/$3.txt" \
            "--config conf/$4.yaml --ngpu ${ngpu} ${*:5}"
}

adaptations() { # all commands
    # four epochs of so many steps: 80, 200, 340 and 1,040 in all
    for share in 1:20 5:50 10:85 100:260; do
        adapt() { # NAME [option ...]
            train "${exp}/${backbone}/$1_${share%:*}" "train_${share%:*}" dev adapt \
                --from "${source}" --num_iters_per_epoch "${share#*:}" "${@:2}"
        }
        for lr in 0.001 0.0003; do
            adapt "finetune@lr${lr}" --optim_conf "lr=${lr}"
            # the prior's variance is 0.001: of the means' penalty a KL weight of 0.01 makes as
            # much as a variance of 0.1
            for weight in 0.1:0.01 1:0.001; do
                adapt "l2@variance${weight%:*}-lr${lr}" --optim_conf "lr=${lr}" \
                    --model_conf regularizer=map --lm_conf "prior_variance=${weight%:*}"
                adapt "bayes@kl${weight#*:}-lr${lr}" "${bayes[@]}" --optim_conf "lr=${lr}" \
                    --model_conf "kl_weight=${weight#*:}"
            done
        done
        # the exact bound
        [ "${share%:*}" != 10 ] || adapt "exact@kl1-lr0.0003" "${bayes[@]}"
    done
}

batch() { # commands of `bayeslm` from standard input
    while read -r -a words; do
        "${PYTHON}" -m espnet_bayeslm.bin.bayeslm "${words[@]}" < /dev/null >> "${log}" 2>&1 ||
            { tail -n 20 "${log}" >&2; echo "adapt.sh: error: see ${log}" >&2; exit 1; }
    done
}

mkdir -p "${exp}"
log=${exp}/${backbone}.log
train "${source}" general general_dev "general_${backbone}" --token_type bpe --vocab_size 2000 | batch
adaptations | batch
for folder in "${source}" "${exp}/${backbone}"/*@*; do
    for set in dev test; do
        output=${exp}/perplexity/${backbone}/$(basename "${folder}")/${set}.json
        [ -e "${output}" ] || echo "perplexity --text ${data}/${set}.txt --lm ${folder} --output ${output}"
    done
done | batch
