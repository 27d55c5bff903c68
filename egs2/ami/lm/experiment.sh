#!/usr/bin/env bash
# From a corpus to the paper's tables and figures: what the recipes of egs2/ami and egs2/lrs2 share.
# Their run.sh calls it with the corpus's options.
set -euo pipefail

log() { echo "$(date '+%Y-%m-%dT%H:%M:%S') (run.sh) $*"; }
die() { echo "run.sh: error: $*" >&2; exit 1; }

table=main
size=small
seeds="1 2"
stage=1
stop_stage=8
ngpu=0
nj=2             # trainings, or evaluations, at the same time
lm=both          # lstm, transformer or both
only=            # names of lines, as in exp/SIZE/seed1; all where empty
parts="5 10 25 50"          # table data_size: percent of the training sentences
units="lstm:50,100,400 transformer:128,256,1024"   # table model_size: beside the size's own
join=            # lines of so many sentences: LMs that see those before (perplexities only)
lm_args=         # more options of espnet2.bin.lm_train
data=data
expdir=exp
note=            # a sentence for the head of the results, e.g. what speech the lists are of
nbest=           # lists of another recogniser (default: NBEST of db.sh)
# the recipe's
order=3
dev=dev
test=eval
tables=main

help() {
    echo "Usage: ./run.sh [--table main] [--size small] [--seeds \"1 2\"] [--stage 1] [--stop_stage 8]"
    echo "  --table   ${tables// / | }"
    echo "  --size    $(sizes)"
    echo "  stages    1 text, 2 n-gram, token list and statistics, 3 N-best lists, 4 training,"
    echo "            5 interpolation and perplexity, 6 rescoring, 7 tables and figures, 8 HTML report"
    echo "  --lm lstm|transformer|both  --only \"NAME ...\"   some of the table's lines"
    echo "  --nj 2  --ngpu 0  --lm_args \"OPTIONS of lm_train\"  --data data  --expdir exp  --nbest DIR"
    echo "  --join 8     LMs that see the 8 sentences before (in EXPDIR/join8; perplexities only)"
    echo "  --note \"a sentence for the head of the results\""
    echo "  --parts \"5 10 25 50\" (table data_size)  --units \"lstm:50,100,400 ...\" (table model_size)"
}

sizes() { # names of conf/SIZE_lstm_half.yaml
    local files=(conf/*_lstm_half.yaml)
    files=("${files[@]#conf/}")
    echo "${files[@]%_lstm_half.yaml}"
}

while [ $# -gt 0 ]; do
    case "$1" in
        --table | --size | --seeds | --stage | --stop_stage | --ngpu | --nj | --lm | --only | --parts | \
            --units | --join | --lm_args | --note | --data | --expdir | --nbest | --order | --dev | --test | --tables)
            [ $# -ge 2 ] || die "the option $1 needs a value"
            printf -v "${1#--}" '%s' "$2"
            shift 2
            ;;
        -h | --help) help; exit 0 ;;
        *) die "unknown option '$1' (see --help)" ;;
    esac
done
one_of() { # OPTION VALUE VALID...
    local option=$1 value=$2
    shift 2
    case " $* " in *" ${value} "*) ;; *) die "${option} ${value}: expected one of $*" ;; esac
}
# shellcheck disable=SC2046,SC2086  # a word for each
{
    one_of --table "${table}" ${tables}
    one_of --size "${size}" $(sizes)
    one_of --lm "${lm}" lstm transformer both
}
[[ "${seeds}" =~ ^[0-9]+(\ [0-9]+)*$ ]] || die "--seeds '${seeds}': expected numbers"

. ./path.sh
. ./cmd.sh
# an option wins over the environment, and that over db.sh
nbest=${nbest:-${NBEST:-$(. ./db.sh && echo "${NBEST}")}}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(($(nproc) > nj ? $(nproc) / nj : 1))}
bayeslm="${PYTHON} -m espnet_bayeslm.bin.bayeslm"
all_stats=${expdir}/lm_stats
if [ -n "${join}" ]; then
    [[ "${join}" =~ ^[1-9][0-9]*$ ]] || die "--join ${join}: expected a number of sentences"
    [ "${table}" != data_size ] || die "--join ${join}: not with --table data_size"
    expdir=${expdir}/join${join}
fi
exp=${expdir}/${size}
case "${table}" in
    data_size) variants="full" && for part in ${parts}; do variants+=" train${part}"; done ;;
    model_size)
        variants="full"
        for pair in ${units}; do
            for unit in $(tr ',' ' ' <<< "${pair#*:}"); do variants+=" ${pair%%:*}_unit${unit}"; done
        done
        ;;
    *) variants="full" ;;
esac

runs() { # does stage $1 run?
    [ "${stage}" -le "$1" ] && [ "${stop_stage}" -ge "$1" ] || return 1
    log "stage $1: $2"
}

need() { # STAGE FILE: made by that stage
    [ -s "$2" ] || die "stage ${stage} needs $2: run stage $1 first"
}

variant() { # VARIANT: its training text, statistics, n-gram, folder in a seed's and options
    part=train stats=${all_stats} folder= extra= backbone=${lm} passes=1
    valid=${data}/${dev}/text.known
    case "$1" in
        train*)
            part=$1 stats=${all_stats}_$1 folder=/$1
            # less text needs more passes: with a quarter of it an epoch has half of the steps
            passes=$(awk -v percent="${part#train}" 'BEGIN { print sqrt(100 / percent) }')
            ;;
        *_unit*)
            folder=/${1#*_} extra="--lm_conf unit=${1##*_unit}" backbone=${1%%_*}
            [ "${lm}" = both ] || [ "${lm}" = "${backbone}" ] || backbone=none
            ;;
    esac
    ngram=${data}/local/${order}gram.arpa
    [ "${part}" = train ] || ngram=${data}/local/${order}gram.${part}.arpa
    if [ -n "${join}" ]; then
        part=train.join${join} stats=${all_stats}_join${join}
        valid=${data}/${part}/text.known
    fi
}

make_ngram() { # TEXT ARPA
    ${bayeslm} ngram --text "$1" --order "${order}" --arpa "$2" --discount_fallback true
}

# Runs commands, of which `queue` starts each in the background, nj at a time.
declare -A jobs=()
failed=
queue() { # LOG COMMAND...
    while [ "${#jobs[@]}" -ge "${nj}" ]; do reap; done
    log "$1"
    mkdir -p "$(dirname "$1")"
    "${@:2}" > "$1" 2>&1 &
    jobs[$!]=$1
}
reap() {
    local pid
    # shellcheck disable=SC2034
    wait -n -p pid "${!jobs[@]}" || { tail -n 5 "${jobs[${pid}]}" >&2; failed+=" ${jobs[${pid}]}"; }
    unset "jobs[${pid}]"
}
finish() {
    while [ "${#jobs[@]}" -gt 0 ]; do reap; done
    [ -z "${failed}" ] || die "failed:${failed}"
}

if runs 1 "text"; then
    local/data.sh --output "${data}"
fi

if runs 2 "${order}-gram, token list, statistics"; then
    need 1 "${data}/train/text.plain"
    make_ngram "${data}/train/text.plain" "${data}/local/${order}gram.arpa"
    ./lm.sh --python "${PYTHON} -m espnet_bayeslm" --stage 1 --stop_stage 2 --datadir "${data}" \
        --train_text "${data}/train/text" --valid_text "${data}/${dev}/text.known" \
        --lm_stats_dir "${all_stats}" --lm_config "conf/${size}_lstm_half.yaml"
fi

if runs 3 "N-best lists"; then
    if [ -n "${nbest}" ]; then
        local/nbest.sh --nbest "${nbest}" --output "${data}/nbest" --sets "${dev} ${test}"
    else
        log "neither --nbest nor NBEST in db.sh: perplexities only"
    fi
fi

each() { # FUNCTION: calls it for each seed, variant and backbone
    local seed name
    for seed in ${seeds}; do
        for name in ${variants}; do
            variant "${name}"
            [ "${backbone}" = none ] || "$1" "${seed}"
        done
    done
    finish
}

train() { # SEED: a job for each backbone
    local family folders=${exp}/seed$1${folder}
    if [ -n "${join}" ]; then
        [ -s "${valid}" ] && [ -d "${stats}" ] || "${PYTHON}" local/join.py --count "${join}" \
            --train "${data}/train/text" --valid "${data}/${dev}/text.known" \
            --tokens "${data}/token_list/word/tokens.txt" --output "${data}/${part}" --stats "${stats}"
    elif [ "${part}" != train ]; then
        [ -s "${data}/${part}/text" ] && [ -d "${stats}" ] || "${PYTHON}" local/subset.py \
            --percent "${part#train}" --output "${data}/${part}" --stats "${stats}" \
            --text "${data}/train/text" --shapes "${all_stats}"
        [ -s "${ngram}" ] || make_ngram "${data}/${part}/text.plain" "${ngram}"
    fi
    for family in lstm transformer; do
        [ "${backbone}" = both ] || [ "${backbone}" = "${family}" ] || continue
        # shellcheck disable=SC2086
        queue "${folders}/train_${table}_${family}.log" "${PYTHON}" local/train.py --table "${table}" \
            --size "${size}" --seed "$1" --lm "${family}" --only ${only} --data "${data}" \
            --valid_text "${valid}" --passes "${passes}" \
            --train_text "${data}/${part}" --stats "${stats}" --exp "${folders}" \
            --lm_args "--ngpu ${ngpu} ${extra} ${lm_args}"
    done
}

if runs 4 "training"; then
    need 2 "${all_stats}/train/text_shape.word"
    each train
fi

evaluate() { # SEED STEP
    local folders=${exp}/seed$1${folder} log
    log=${folders}/$2_${table}
    mkdir -p "${folders}"
    # shellcheck disable=SC2086
    "${PYTHON}" local/systems.py --step "$2" --table "${table}" --seed "$1" --controls ${seeds} \
        --lm "${backbone}" --only ${only} --data "${data}" --exp "${folders}" --ngram "${ngram}" \
        --order "${order}" --sets "${dev}" "${test}" --context "${join:-0}" > "${log}.commands"
    queue "${log}.log" "${PYTHON}" local/batch.py "${log}.commands"
}
perplexity() { evaluate "$1" perplexity; }
rescore() { evaluate "$1" rescore; }

if runs 5 "interpolation and perplexity"; then
    need 2 "${data}/local/${order}gram.arpa"
    each perplexity
fi

if runs 6 "rescoring"; then
    if [ -n "${join}" ]; then
        log "the lists have no sentences before theirs: nothing is rescored with --join"
    elif [ -s "${data}/nbest/conditions" ]; then
        each rescore
    else
        log "${data}/nbest has no lists: nothing to rescore (stage 3 makes them)"
    fi
fi

if runs 7 "tables and figures"; then
    # shellcheck disable=SC2086
    "${PYTHON}" local/results.py --table "${table}" --size "${size}" --seeds ${seeds} \
        --sets "${dev}" "${test}" --order "${order}" --exp "${expdir}" --data "${data}" \
        --note ${note:+"${note}"} ${join:+"The LMs read each sentence after the ${join} or more before it."}
fi

if runs 8 "HTML report"; then
    need 7 "${exp}/report_${table}.yaml"
    ${bayeslm} report --config "${exp}/report_${table}.yaml" --output "${exp}/report_${table}.html"
fi
