#!/usr/bin/env bash
# Presidents' addresses: text to word error rates of rescored N-best lists (see README.md).
set -euo pipefail

log() { echo "$(date '+%Y-%m-%dT%H:%M:%S') (run.sh) $*"; }
die() { echo "run.sh: error: $*" >&2; exit 1; }

size=small       # small: 15 minutes on 2 CPU cores; full: all of the text
stage=1
stop_stage=7
ngpu=0
nj=2             # processes that speak and recognise
kinds=bayes      # of uncertainty: some of "bayes gp variational"
while [ $# -gt 0 ]; do
    case "$1" in
        --size | --stage | --stop_stage | --ngpu | --nj | --kinds)
            [ $# -ge 2 ] || die "the option $1 needs a value"
            printf -v "${1#--}" '%s' "$2"
            shift 2
            ;;
        -h | --help)
            echo "Usage: $0 [--size small|full] [--stage 1] [--stop_stage 7] [--ngpu 0] [--nj 2]"
            echo "       [--kinds \"bayes gp variational\"]"
            echo "       $0 --stage 8 --stop_stage 8 (what learning the standard deviations is worth)"
            echo "       $0 --stage 9 --stop_stage 9 (architecture search)"
            echo "       $0 --stage 10 --stop_stage 10 (adaptation of ESPnet's own LMs; needs no other stage)"
            exit 0
            ;;
        *) die "unknown option '$1' (see --help)" ;;
    esac
done
for kind in ${kinds}; do
    case "${kind}" in
        bayes | gp | variational) ;;
        *) die "--kinds ${kinds}: expected some of bayes, gp, variational" ;;
    esac
done
case "${size}" in
    small) data=data exp=exp max_words=20 ;; # short sentences: half the time of all lengths
    full) data=data/full exp=exp/full max_words=30 ;;
    *) die "--size ${size}: expected small or full" ;;
esac

. ./path.sh
. ./cmd.sh
python="${PYTHON} -m espnet_bayeslm"
bayeslm="${PYTHON} -m espnet_bayeslm.bin.bayeslm"
ngram=${data}/local/3gram.arpa
# the LSTM and the Transformer are trained at the same time, each on half of the cores
threads=$(($(nproc) > 2 ? $(nproc) / 2 : 1))

runs() { # does stage $1 run?
    [ "${stage}" -le "$1" ] && [ "${stop_stage}" -ge "$1" ] || return 1
    log "stage $1: $2"
}

lm() { # NAME [lm.sh option ...]: stages of lm.sh for the LM of conf/train_NAME.yaml
    OMP_NUM_THREADS=${threads} ./lm.sh --python "${python}" --ngpu "${ngpu}" \
        --train_text "${data}/train/text" --valid_text "${data}/dev/text.known" \
        --datadir "${data}" --lm_stats_dir "${exp}/lm_stats" \
        --lm_config "conf/train_$1.yaml" --lm_exp "${exp}/$1" "${@:2}"
}

both() { # KIND [START [PRIOR]]: LSTM and Transformer of a kind at the same time
    local jobs=() job args family failed=
    for family in lstm transformer; do
        args=
        [ $# -lt 2 ] || args="--init_param ${exp}/$2_${family}/valid.loss.ave.pth"
        [ $# -lt 3 ] || args+=" --model_conf prior=${exp}/$3_${family}/valid.loss.ave.pth"
        # without lm.sh's perplexity: stage 6 has it
        lm "$1_${family}" --stage 3 --stop_stage 3 --lm_args "${args}" &
        jobs+=($!)
    done
    for job in "${jobs[@]}"; do wait "${job}" || failed=yes; done
    [ -z "${failed}" ] || die "training failed"
}

if runs 1 "text"; then
    local/data.sh --size "${size}" --output "${data}"
fi

if runs 2 "3-gram"; then
    ${bayeslm} ngram --text "${data}/train/text.plain" --order 3 --arpa "${ngram}" \
        --discount_fallback true
fi

if runs 3 "speech and N-best lists"; then
    for set in dev:300 test:500; do
        "${PYTHON}" local/nbest.py --text "${data}/${set%:*}/text" --num_sentences "${set#*:}" \
            --max_words "${max_words}" --lm "${ngram}" --output "${data}/nbest/${set%:*}" \
            --work "${data}/local/nbest" --nj "${nj}"
    done
fi

if runs 4 "token list, statistics, point-estimate LMs"; then
    lm half_lstm --stage 1 --stop_stage 2
    both half
    both point half
fi

if runs 5 "uncertain LMs: ${kinds}"; then
    for kind in ${kinds}; do
        # the paper's IV-A: start from the half-trained LM, prior from the fully trained one;
        # a variational LM's prior is a network
        if [ "${kind}" = variational ]; then both variational half; else both "${kind}" half point; fi
    done
fi

# SYSTEM: the LMs that are interpolated with the 3-gram
declare -A lms=(
    [3gram]=""
    [lstm]="point_lstm"
    [bayes_lstm]="bayes_lstm"
    [bayes_lstm_lstm]="bayes_lstm point_lstm"
    [transformer]="point_transformer"
    [bayes_transformer]="bayes_transformer"
    [bayes_transformer_transformer]="bayes_transformer point_transformer"
    [search_lstm]="search_lstm/top1"
)
systems="3gram lstm transformer"
case " ${kinds} " in
    *" bayes "*)
        systems="3gram lstm bayes_lstm bayes_lstm_lstm transformer bayes_transformer bayes_transformer_transformer"
        ;;
esac

system_commands() { # SYSTEM ...: interpolation and rescoring, as command lines of `bayeslm`
    local system lm components set voice lists
    for system in "$@"; do
        components=
        for lm in ${lms[${system}]}; do components+=" --lm ${exp}/${lm}"; done
        components+=" --ngram ${ngram} --cache ${exp}/cache"
        # weights: EM on the dev text; scales: fewest errors on the dev lists, per voice
        echo "interpolate --text ${data}/dev/text.plain${components} --output ${exp}/weights/${system}.yaml"
        components+=" --weights ${exp}/weights/${system}.yaml"
        for set in dev test; do
            echo "perplexity --text ${data}/${set}/text.plain${components}" \
                "--output ${exp}/perplexity/${system}/${set}.json"
        done
        for voice in us gb; do
            lists=${data}/nbest
            echo "rescore --nbest ${lists}/dev_${voice} --nbest_format kaldi${components}" \
                "--tune_ref ${lists}/dev_${voice}/text --output ${exp}/rescore/${system}/dev_${voice}"
            echo "rescore --nbest ${lists}/test_${voice} --nbest_format kaldi${components}" \
                "--scales ${exp}/rescore/${system}/dev_${voice}/scales.yaml" \
                "--ref ${lists}/test_${voice}/text --output ${exp}/rescore/${system}/test_${voice}"
        done
    done
}

perplexity_commands() { # LM ...: of each alone; those of exp/A/B go to exp/perplexity/A_B
    local lm set
    for lm in "$@"; do
        for set in dev test; do
            echo "perplexity --text ${data}/${set}/text.plain --lm ${exp}/${lm}" \
                "--cache ${exp}/cache --output ${exp}/perplexity/${lm/\//_}/${set}.json"
        done
    done
}

rescoring_commands() { # what stage 6 does
    local lm
    # shellcheck disable=SC2086  # one word for each system
    system_commands ${systems}
    # the uncertain LMs alone; the Bayesian ones are in a system
    for lm in $(for kind in ${kinds}; do echo "${kind}"_{lstm,transformer}; done); do
        [[ ${lm} = bayes_* ]] || perplexity_commands "${lm}"
        echo "snr --lm ${exp}/${lm} --text ${data}/dev/text.plain --output ${exp}/snr/${lm}"
    done
}

if runs 6 "interpolation and rescoring (log: ${exp}/rescore.log)"; then
    mkdir -p "${exp}"
    rescoring_commands > "${exp}/rescore.commands"
    ${bayeslm} batch < "${exp}/rescore.commands" > "${exp}/rescore.log"
fi

results() {
    # shellcheck disable=SC2086  # one word for each system
    "${PYTHON}" local/results.py --exp "${exp}" --data "${data}" --size "${size}" --systems ${systems}
}

if runs 7 "results"; then
    results
fi

if runs 8 "Bayesian LMs whose standard deviations stay as they start"; then
    for family in lstm transformer; do
        args="--init_param ${exp}/half_${family}/valid.loss.ave.pth --model_conf posterior_lr=1.0e-12"
        args+=" --model_conf prior=${exp}/point_${family}/valid.loss.ave.pth"
        lm "bayes_${family}" --lm_exp "${exp}/fixed_${family}" --stage 3 --stop_stage 3 --lm_args "${args}"
    done
    results
fi

if runs 9 "architecture search: LSTM (log: ${exp}/search_lstm.log)"; then
    # `bayeslm search` reads plain text; the words are the half-trained LM's
    cut -d ' ' -f 2- "${data}/dev/text.known" > "${exp}/dev.known.plain"
    # as stage 5: start from the half-trained LM, prior from the fully trained one, by the same steps
    ${bayeslm} search --config conf/search_bayes_lstm.yaml --exp "${exp}/search_lstm" \
        --train_text "${data}/train/text.plain" --valid_text "${exp}/dev.known.plain" \
        --from "${exp}/half_lstm" --seeds 0,1,2 --top 3 --retrain true --retrain_from start \
        --model_conf "prior=${exp}/point_lstm/valid.loss.ave.pth" --ngpu "${ngpu}" \
        2> "${exp}/search_lstm.log" ||
        { tail -n 20 "${exp}/search_lstm.log" >&2; die "the search failed"; }
    { perplexity_commands search_lstm/top{1,2,3}; system_commands search_lstm; } \
        > "${exp}/search_lstm.commands"
    ${bayeslm} batch < "${exp}/search_lstm.commands" >> "${exp}/search_lstm.log"
    results
fi

if runs 10 "adaptation of ESPnet's own LMs (logs: exp/adaptation/*.log)"; then
    "${PYTHON}" local/adaptation_data.py --output data/adaptation
    jobs=()
    for backbone in seq_rnn transformer; do
        OMP_NUM_THREADS=${threads} local/adapt.sh --backbone "${backbone}" --ngpu "${ngpu}" &
        jobs+=($!)
    done
    for job in "${jobs[@]}"; do wait "${job}" || die "adaptation failed"; done
    "${PYTHON}" local/adaptation.py
fi
