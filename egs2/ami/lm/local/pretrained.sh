#!/usr/bin/env bash
# Adapts a pretrained LM to a part of the AMI text: LoRA, Bayesian LoRA, controls; perplexities and WER.
# After stages 1 to 3 of run.sh. What is there already is kept, so that a stopped run goes on.
set -euo pipefail
base= percent=10 seeds="1 2 3" exp=exp/pretrained precision=float32 epochs=3 nbest=data/nbest systems="lora ivon_lora"
while [ $# -gt 0 ]; do
    case $1 in
        --base|--percent|--seeds|--exp|--precision|--epochs|--nbest|--systems) printf -v "${1#--}" '%s' "$2"; shift 2 ;;
        *) echo "Usage: $0 --base hf:FOLDER|FILE.gguf [--percent 10] [--seeds '1 2 3'] [--precision bfloat16]" \
            "[--epochs 3] [--exp DIR] [--nbest DIR] [--systems 'NAME ...']" >&2; exit 1 ;;
    esac
done
[ -n "${base}" ] || { echo "$0: give --base" >&2; exit 1; }
. ./path.sh
bayeslm=("${PYTHON}" -m espnet_bayeslm.bin.bayeslm)
mkdir -p "${exp}"
part=${exp}/train.txt
# the part of the study of data size
[ -s "${part}" ] || "${PYTHON}" - "${percent}" > "${part}" <<'P'
import random, sys
rows = open("data/train/text.plain", encoding="utf-8").read().splitlines()
order = list(range(len(rows)))
random.Random(0).shuffle(order)
print("\n".join(rows[n] for n in sorted(order[: round(len(rows) * int(sys.argv[1]) / 100)])))
P
known_sentences() {  # the sentences of $2 without words unknown in $1
    "${PYTHON}" - "$@" <<'P'
import sys
known = set(open(sys.argv[1], encoding="utf-8").read().split())
for line in open(sys.argv[2], encoding="utf-8"):
    if line.split() and known.issuperset(line.split()):
        print(line.strip())
P
}
# every tenth sentence of dev validates
known_sentences data/lexicon_words.txt data/dev/text.plain > "${exp}/dev.txt"
known_sentences "${part}" data/eval/text.plain > "${exp}/eval.txt"
awk 'NR % 10 == 1' "${exp}/dev.txt" > "${exp}/valid.txt"

declare -A options=(
    [lora]="--config lora"
    [lora_dropout0]="--config lora --lm_conf lora.dropout=0.0"
    [lora_dropout0.2]="--config lora --lm_conf lora.dropout=0.2"
    [lora_r4]="--config lora --lm_conf lora.r=4"
    [lora_r64]="--config lora --lm_conf lora.r=64"
    [lora_decay]="--config lora --optim_conf weight_decay=0.1"
    [bayes_lora]="--config bayes_lora"
    [ivon_lora]="--config ivon_lora"
    # the noise of an adapter's product grows with its rank: half the standard deviation
    [ivon_lora_r64]="--config ivon_lora --lm_conf lora.r=64 --optim_conf ess=40000000"
    [ivon_lora_3m]="--config ivon_lora --optim_conf ess=3000000"
    [ivon_lora_nonoise]="--config ivon_lora --optim_conf ess=1000000000000"
    [bayes_lora_kl0.01]="--config bayes_lora --model_conf kl_weight=0.01"
    [bayes_lora_kl0.0001]="--config bayes_lora --model_conf kl_weight=0.0001"
    [bayes_lora_both]="--config bayes_lora --lm_conf uncertainty.lora_a@*={kind: bayes, init_std: 0.5, init_std_unit: weights}"
)
for seed in ${seeds}; do
    for name in ${systems}; do
        read -ra words <<< "${options[${name}]%% --lm_conf uncertainty*}"
        [[ ${options[${name}]} != *uncertainty* ]] || words+=(--lm_conf "${options[${name}]##*--lm_conf }")
        "${bayeslm[@]}" train "${words[@]}" --from "${base}" --train_text "${part}" --valid_text "${exp}/valid.txt" \
            --exp "${exp}/${name}.${seed}" --seed "${seed}" --max_epoch "${epochs}" --num_workers 0 \
            --lm_conf "precision=${precision}" --lm_conf text_form=as_is
        "${bayeslm[@]}" perplexity --text "${exp}/eval.txt" --lm "${exp}/${name}.${seed}" | tee "${exp}/${name}.${seed}/eval.txt"
        [[ ${name} == lora* ]] || "${bayeslm[@]}" perplexity --text "${exp}/eval.txt" --lm "${exp}/${name}.${seed}" \
            --num_samples 8 | tee "${exp}/${name}.${seed}/eval_samples.txt"
    done
done
[ -s "${nbest}/conditions" ] || exit 0
ngram=${exp}/3gram.arpa
[ -s "${ngram}" ] || "${bayeslm[@]}" ngram --text data/train/text.plain --arpa "${ngram}"
for name in ${systems}; do
    lm=${exp}/${name}.${seeds%% *}
    [ -s "${lm}/weights.yaml" ] || "${bayeslm[@]}" interpolate --text "${exp}/valid.txt" --lm "${lm}" --ngram "${ngram}" \
        --output "${lm}/weights.yaml"
done
while read -r condition; do
    for name in ${systems}; do
        lm=${exp}/${name}.${seeds%% *} output=${exp}/${name}.${seeds%% *}/rescore_${condition}
        [ -s "${output}/eval/text" ] && continue
        "${bayeslm[@]}" rescore --nbest "${nbest}/dev_${condition}" --lm "${lm}" --ngram "${ngram}" \
            --weights "${lm}/weights.yaml" --tune_ref "${nbest}/dev_${condition}/text" --output "${output}/dev"
        "${bayeslm[@]}" rescore --nbest "${nbest}/eval_${condition}" --lm "${lm}" --ngram "${ngram}" \
            --weights "${lm}/weights.yaml" --scales "${output}/dev/scales.yaml" --ref "${nbest}/eval_${condition}/text" --output "${output}/eval"
    done
done < "${nbest}/conditions"
