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
            echo "       $0 --stage 11 --stop_stage 11 (the recogniser's LM subtracted on AMI's text, and the reverse)"
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

runs() { # does stage $1 run?
    [ "${stage}" -le "$1" ] && [ "${stop_stage}" -ge "$1" ] || return 1
    log "stage $1: $2"
}

lab() { # FIRST LAST [option ...]: stages of conf/plan.yaml, two LMs at the same time
    "${PYTHON}" -m lab --plan conf/plan.yaml --size "${size}" --seeds 0 --data "${data}" \
        --expdir "${exp}" --ngpu "${ngpu}" --stage "$1" --stop_stage "$2" "${@:3}"
}

if runs 1 "text"; then
    local/data.sh --size "${size}" --output "${data}"
fi

if runs 2 "3-gram, token list, statistics"; then
    lab 2 2
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
    lab 4 4 --only "point_lstm point_transformer"
fi

if runs 5 "uncertain LMs: ${kinds}"; then
    # the paper's IV-A: start from the half-trained LM, prior from the fully trained one;
    # a variational LM's prior is a network
    lines=$(for kind in ${kinds}; do echo "${kind}"_{lstm,transformer}; done)
    case "${kinds}" in *bayes*) lines+=" embedding_transformer" ;; esac
    lab 4 4 --only "${lines}"
fi

if runs 6 "interpolation and rescoring"; then
    lab 5 6
fi

note="Real text, a real recogniser, **synthetic speech**: sentences of the presidents' addresses, spoken by
the voices of Pico, recognised by PocketSphinx with the 3-gram to 20-best lists. The word error rates say
nothing about recorded speech. One run, seed 0: small differences are not significant."

if runs 7 "tables and figures"; then
    lab 7 7 --note "${note}"
fi

if runs 8 "Bayesian LMs whose standard deviations stay as they start"; then
    lab 4 7 --table fixed --note "${note}"
fi

if runs 9 "architecture search: LSTM"; then
    lab 4 7 --table search --note "${note}"
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

if runs 11 "the recogniser's LM subtracted on another domain's text (needs egs2/ami/lm/data)"; then
    local/subtract.sh --ami ../../ami/lm/data --sotu "${data}" --output "${exp}/subtract" --nj "${nj}"
fi
