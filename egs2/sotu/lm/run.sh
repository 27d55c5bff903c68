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
for option in stage stop_stage ngpu nj; do
    case "${!option}" in
        '' | *[!0-9]*) die "--${option} ${!option}: expected a number" ;;
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
bayeslm=("${PYTHON}" -m espnet_bayeslm.bin.bayeslm)

runs() { # does stage $1 run?
    [ "${stage}" -le "$1" ] && [ "${stop_stage}" -ge "$1" ] || return 1
    log "stage $1: $2"
}

experiment() { # STAGE [option ...]: a stage of `bayeslm experiment`, two LMs at the same time
    "${bayeslm[@]}" experiment --plan conf/plan.yaml --size "${size}" --seeds 0 --data "${data}" \
        --expdir "${exp}" --ngpu "${ngpu}" --stage "$1" --stop_stage "$1" "${@:2}"
}

if runs 1 "text"; then
    local/data.sh --size "${size}" --output "${data}"
fi

if runs 2 "3-gram, token list, statistics"; then
    experiment 2
fi

if runs 3 "speech and N-best lists"; then
    for set in dev:300 test:500; do
        "${PYTHON}" local/nbest.py --text "${data}/${set%:*}/text" --num_sentences "${set#*:}" \
            --max_words "${max_words}" --lm "${data}/local/3gram.arpa" --output "${data}/nbest/${set%:*}" \
            --work "${data}/local/nbest" --nj "${nj}"
    done
    printf 'us\ngb\n' > "${data}/nbest/conditions"
fi

if runs 4 "point-estimate LMs"; then
    experiment 4 --only "point_lstm point_transformer"
fi

if runs 5 "uncertain LMs: ${kinds}"; then
    # the paper's IV-A: start from the half-trained LM, prior from the fully trained one;
    # a variational LM's prior is a network
    lines=$(for kind in ${kinds}; do echo "${kind}"_{lstm,transformer}; done)
    case "${kinds}" in *bayes*) lines+=" embedding_transformer" ;; esac
    experiment 4 --only "${lines}"
fi

if runs 6 "interpolation and rescoring (logs: ${exp}/{perplexity,rescore}_main.log)"; then
    experiment 5
    experiment 6
fi

results() {
    "${PYTHON}" local/results.py --exp "${exp}" --data "${data}" --size "${size}"
}

if runs 7 "results"; then
    results
fi

if runs 8 "Bayesian LMs whose standard deviations stay as they start"; then
    experiment 4 --table fixed
    results
fi

if runs 9 "architecture search: LSTM (log: ${exp}/search_lstm.log)"; then
    # `bayeslm search` reads plain text; the words are the half-trained LM's
    cut -d ' ' -f 2- "${data}/dev/text.known" > "${exp}/dev.known.plain"
    # as stage 5: start from the half-trained LM, prior from the fully trained one, by the same steps
    options=(--train_text "${data}/train/text.plain" --valid_text "${exp}/dev.known.plain"
        --from "${exp}/half_lstm" --model_conf "prior=${exp}/point_lstm/valid.loss.ave.pth"
        --ngpu "${ngpu}")
    "${bayeslm[@]}" search --config conf/search_bayes_lstm.yaml --exp "${exp}/search_lstm" \
        --seeds 0,1,2 --top 3 "${options[@]}" 2> "${exp}/search_lstm.log" ||
        { tail -n 20 "${exp}/search_lstm.log" >&2; die "the search failed"; }
    for n in 1 2 3; do
        "${bayeslm[@]}" train --config "${exp}/search_lstm/top${n}.yaml" \
            --exp "${exp}/search_lstm/top${n}" "${options[@]}" --seed 0 2>> "${exp}/search_lstm.log" ||
            { tail -n 20 "${exp}/search_lstm.log" >&2; die "the training failed"; }
    done
    experiment 5 --table search
    experiment 6 --table search
    results
fi

if runs 10 "adaptation of ESPnet's own LMs (logs: exp/adaptation/*.log)"; then
    "${PYTHON}" local/adaptation_data.py --output data/adaptation
    jobs=()
    for backbone in seq_rnn transformer; do
        OMP_NUM_THREADS=$(($(nproc) > 2 ? $(nproc) / 2 : 1)) local/adapt.sh --backbone "${backbone}" --ngpu "${ngpu}" &
        jobs+=($!)
    done
    for job in "${jobs[@]}"; do wait "${job}" || die "adaptation failed"; done
    "${PYTHON}" local/adaptation.py
fi
