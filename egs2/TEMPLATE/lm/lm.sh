#!/usr/bin/env bash
# Trains an ESPnet LM from Kaldi-style text: token list, statistics, training, perplexity.
# Runs in a recipe of an ESPnet checkout (its path.sh, cmd.sh, utils/) and outside of one.

set -euo pipefail

log() { echo "$(date '+%Y-%m-%dT%H:%M:%S') (lm.sh) $*"; }
die() { echo "lm.sh: error: $*" >&2; exit 1; }

stage=1
stop_stage=4
python=python3            # "python3 -m espnet_bayeslm" adds the LMs of that package
ngpu=0                    # GPUs; 0 is CPU
nj=1                      # jobs of the statistics
expdir=exp
datadir=data              # token lists go to ${datadir}/token_list
train_text=               # Kaldi text: `utterance word word ...`
valid_text=
test_text=                # perplexity is of this text (default: valid_text)
token_type=word           # word, bpe or char
nbpe=5000                 # BPE pieces
vocab_size=0              # words or characters at most, 0 is all
token_list=               # default: made from train_text
bpemodel=                 # sentencepiece model, with --token_list and --token_type bpe
lm_config=                # yaml of espnet2.bin.lm_train
lm_conf=                  # the same
lm_args=                  # more options of it, e.g. "--max_epoch 10"
lm_tag=                   # name of the experiment (default: from lm_config and lm_args)
lm_exp=                   # its folder (default: ${expdir}/lm_${lm_tag})
lm_stats_dir=             # default: ${expdir}/lm_stats_${token_type}
inference_lm=valid.loss.ave.pth

help_message="Usage: $0 --train_text FILE --valid_text FILE --lm_config FILE.yaml [options]

  --stage 1 --stop_stage 4    1 token list, 2 statistics, 3 training, 4 perplexity
  --lm_config, --lm_conf      training configuration (yaml); two names of one option
  --lm_args \"...\"             more options of espnet2.bin.lm_train
  --lm_tag, --lm_exp          name and folder of the experiment
  --lm_stats_dir              folder of the statistics
  --train_text, --valid_text, --test_text   Kaldi text
  --token_type word|bpe|char  --nbpe N  --vocab_size N  --token_list FILE  --bpemodel FILE
  --python \"python3 -m espnet_bayeslm\"  --ngpu N  --nj N  --expdir DIR  --datadir DIR
  --inference_lm FILE         checkpoint for the perplexity, in the experiment's folder"

# `--name value` sets the variable `name`, which must be one of those above.
parse_own_options() {
    local name
    while [ $# -gt 0 ]; do
        case "$1" in
            -h | --help) echo "${help_message}"; exit 0 ;;
            --*) ;;
            *) die "expected --option value, got '$1'" ;;
        esac
        name=${1#--}
        name=${name//-/_}
        [[ "${name}" =~ ^[a-z][a-z_]*$ && -n "${!name+set}" ]] || die "unknown option '$1' (see --help)"
        [ $# -ge 2 ] || die "the option '$1' needs a value"
        printf -v "${name}" '%s' "$2"
        shift 2
    done
}

# Stands in for run.pl: [--option value ...] [NAME=1:N] LOG COMMAND..., its output in LOG; the
# job's number stands where NAME does, as in run.pl.
run_here() {
    local first=1 last=1 name= log job failed=0
    local -A pids=()
    while [[ "$1" == --* ]]; do shift 2; done
    if [[ "$1" =~ ^([A-Z_]+)=([0-9]+):([0-9]+)$ ]]; then
        name=${BASH_REMATCH[1]} first=${BASH_REMATCH[2]} last=${BASH_REMATCH[3]}
        shift
    fi
    log=$1
    shift
    mkdir -p "$(dirname "${log}")"
    for job in $(seq "${first}" "${last}"); do
        "${@//${name}/${job}}" > "${log//${name}/${job}}" 2>&1 &
        pids[${job}]=$!
    done
    for job in "${!pids[@]}"; do
        wait "${pids[${job}]}" || { failed=1; tail -n 20 "${log//${name}/${job}}" >&2; }
    done
    [ "${failed}" -eq 0 ] || die "failed: $1 ... (log: ${log})"
}

# A name for the jobs' number that stands in none of these words: run.pl replaces it in all of them.
job_name() {
    local name=JOB
    while [[ "$*" == *"${name}"* ]]; do name+=_; done
    echo "${name}"
}

need_file() { # OPTION FILE
    [ -n "$2" ] || die "the option --$1 is needed"
    [ -s "$2" ] || die "--$1: no such file, or an empty one: $2"
}

command_line="$0 $*"
if [ -e utils/parse_options.sh ]; then
    # shellcheck disable=SC1091  # of an ESPnet checkout
    . utils/parse_options.sh
    [ $# -eq 0 ] || die "expected --option value, got '$1'"
else
    parse_own_options "$@"
fi
[ -e ./path.sh ] && . ./path.sh
[ -e ./cmd.sh ] && . ./cmd.sh
command -v run.pl > /dev/null || train_cmd=run_here cuda_cmd=run_here
log "${command_line}"

[ -z "${lm_conf}" ] || [ -z "${lm_config}" ] || [ "${lm_conf}" = "${lm_config}" ] ||
    die "--lm_config ${lm_config} and --lm_conf ${lm_conf} are two names of one option"
lm_config=${lm_config:-${lm_conf}}
test_text=${test_text:-${valid_text}}

token_name=${token_type}
case "${token_type}" in
    word | char) ;;
    bpe) token_name=bpe_unigram${nbpe} ;;
    *) die "--token_type ${token_type}: expected word, bpe or char" ;;
esac
token_folder=${datadir}/token_list/${token_name}
make_token_list=$([ -n "${token_list}" ] && echo false || echo true)
token_list=${token_list:-${token_folder}/tokens.txt}
token_opts=(--token_type "${token_type}" --token_list "${token_list}")
if [ "${token_type}" = bpe ]; then
    bpemodel=${bpemodel:-${token_folder}/bpe.model}
    token_opts+=(--bpemodel "${bpemodel}")
fi
if [ -z "${lm_tag}" ]; then
    lm_tag=$(basename "${lm_config}" .yaml)$(sed -e 's/--/_/g' -e 's/[ |=/]//g' <<< "${lm_args}")
fi
lm_exp=${lm_exp:-${expdir}/lm_${lm_tag}_${token_name}}
lm_stats_dir=${lm_stats_dir:-${expdir}/lm_stats_${token_name}}

if [ "${stage}" -le 1 ] && [ "${stop_stage}" -ge 1 ] && "${make_token_list}"; then
    log "stage 1: token list ${token_list}"
    need_file train_text "${train_text}"
    mkdir -p "${token_folder}"
    if [ "${token_type}" = bpe ]; then
        cut -f 2- -d ' ' "${train_text}" > "${token_folder}/train.txt"
        ${python} -c "import sys, sentencepiece as s; s.SentencePieceTrainer.train(' '.join(sys.argv[1:]))" \
            --input="${token_folder}/train.txt" --model_prefix="${token_folder}/bpe" \
            --vocab_size="${nbpe}" --model_type=unigram --character_coverage=1.0 \
            --max_sentence_length=10000000
        {
            printf '<blank>\n<unk>\n'
            cut -f 1 "${token_folder}/bpe.vocab" | { grep -vxF -e '<unk>' -e '<s>' -e '</s>' || true; }
            printf '<sos/eos>\n'
        } > "${token_list}.tmp"
    else
        ${python} -m espnet2.bin.tokenize_text --token_type "${token_type}" \
            --input "${train_text}" --output "${token_list}.tmp" --field 2- \
            --write_vocabulary true --vocabulary_size "${vocab_size}" \
            --add_symbol '<blank>:0' --add_symbol '<unk>:1' --add_symbol '<sos/eos>:-1'
    fi
    mv "${token_list}.tmp" "${token_list}"
    log "$(wc -l < "${token_list}") tokens"
fi

if [ "${stage}" -le 2 ] && [ "${stop_stage}" -ge 2 ]; then
    log "stage 2: statistics ${lm_stats_dir}"
    need_file train_text "${train_text}"
    need_file valid_text "${valid_text}"
    need_file lm_config "${lm_config}"
    need_file token_list "${token_list}"
    rm -rf "${lm_stats_dir}.tmp"
    log_dir=${lm_stats_dir}.tmp/logdir
    mkdir -p "${log_dir}"
    for set in train valid; do
        text=${set}_text
        nj=$((nj < $(wc -l < "${!text}") ? nj : $(wc -l < "${!text}")))
    done
    for set in train valid; do
        text=${set}_text
        for job in $(seq "${nj}"); do
            awk -v n="${nj}" -v j="${job}" 'NR % n == j % n' "${!text}" > "${log_dir}/${set}.${job}.scp"
        done
    done
    name=$(job_name "${log_dir}" "${python} ${lm_config} ${lm_args}" "${token_opts[@]}" "${train_text}" "${valid_text}")
    # shellcheck disable=SC2086  # lm_args and python hold several words
    ${train_cmd} "${name}=1:${nj}" "${log_dir}/stats.${name}.log" \
        ${python} -m espnet2.bin.lm_train --collect_stats true --config "${lm_config}" ${lm_args} \
        "${token_opts[@]}" --use_preprocessor true \
        --train_data_path_and_name_and_type "${train_text},text,text" \
        --valid_data_path_and_name_and_type "${valid_text},text,text" \
        --train_shape_file "${log_dir}/train.${name}.scp" --valid_shape_file "${log_dir}/valid.${name}.scp" \
        --output_dir "${log_dir}/stats.${name}"
    for set in train valid; do
        mkdir -p "${lm_stats_dir}.tmp/${set}"
        for job in $(seq "${nj}"); do
            cat "${log_dir}/stats.${job}/${set}/text_shape"
        done | LC_ALL=C sort > "${lm_stats_dir}.tmp/${set}/text_shape"
        # the second field of a shape is the vocabulary size, as ESPnet's batch types expect
        awk -v n="$(wc -l < "${token_list}")" '{ print $0 "," n }' \
            "${lm_stats_dir}.tmp/${set}/text_shape" > "${lm_stats_dir}.tmp/${set}/text_shape.${token_type}"
    done
    rm -rf "${lm_stats_dir}"
    mv "${lm_stats_dir}.tmp" "${lm_stats_dir}"
fi

if [ "${stage}" -le 3 ] && [ "${stop_stage}" -ge 3 ]; then
    log "stage 3: training ${lm_exp} (log: ${lm_exp}/train.log)"
    need_file lm_config "${lm_config}"
    need_file token_list "${token_list}"
    need_file train_text "${train_text}"
    need_file valid_text "${valid_text}"
    # shellcheck disable=SC2086
    ${cuda_cmd} --gpu "${ngpu}" "${lm_exp}/train.log" \
        ${python} -m espnet2.bin.lm_train --config "${lm_config}" --ngpu "${ngpu}" --resume true \
        "${token_opts[@]}" --use_preprocessor true --fold_length 150 \
        --train_data_path_and_name_and_type "${train_text},text,text" \
        --valid_data_path_and_name_and_type "${valid_text},text,text" \
        --train_shape_file "${lm_stats_dir}/train/text_shape.${token_type}" \
        --valid_shape_file "${lm_stats_dir}/valid/text_shape.${token_type}" \
        --output_dir "${lm_exp}" ${lm_args}
fi

if [ "${stage}" -le 4 ] && [ "${stop_stage}" -ge 4 ]; then
    log "stage 4: perplexity of ${test_text}"
    need_file test_text "${test_text}"
    ppl_dir=${lm_exp}/perplexity_$(basename "$(dirname "${test_text}")")
    # shellcheck disable=SC2086
    ${cuda_cmd} --gpu "${ngpu}" "${ppl_dir}/lm_calc_perplexity.log" \
        ${python} -m espnet2.bin.lm_calc_perplexity --ngpu "${ngpu}" --batch_size 32 \
        --data_path_and_name_and_type "${test_text},text,text" \
        --train_config "${lm_exp}/config.yaml" --model_file "${lm_exp}/${inference_lm}" \
        --output_dir "${ppl_dir}"
    log "perplexity: $(cat "${ppl_dir}/ppl") (${ppl_dir}/ppl)"
fi
