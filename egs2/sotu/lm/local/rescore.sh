#!/usr/bin/env bash
# N-best rescoring in parallel jobs, and their merge:
#   local/rescore.sh --nj 8 --output exp/rescore/test [--cmd "slurm.pl --mem 8G"] \
#       --nbest data/nbest/test --lm exp/bayes_lstm ... [--scales FILE | --tune_ref TEXT] [--ref TEXT]
# The options after --nj, --cmd and --job_dir are those of `bayeslm rescore`. The result is that of
# one job, bit for bit on a CPU. Jobs that are done are not done again: delete --job_dir for that.
set -euo pipefail

die() { echo "rescore.sh: error: $*" >&2; exit 1; }

nj=4
cmd=
job_dir=
output=
scoring=()  # what the jobs get: lists, LMs, weights
choosing=() # what the merge gets: lists, scales, references
while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || die "the option $1 needs a value"
    case "$1" in
        --nj | --cmd | --job_dir) printf -v "${1#--}" '%s' "$2" ;;
        --output) output=$2 ;;
        # the weights that were tuned are in the scales
        --nbest | --nbest_format | --token_scores | --scales) scoring+=("$1" "$2") choosing+=("$1" "$2") ;;
        --ref | --tune_ref | --lmwt | --word_penalty) choosing+=("$1" "$2") ;;
        *) scoring+=("$1" "$2") ;;
    esac
    shift 2
done
[ -n "${output}" ] || die "--output is needed"
[[ ${nj} =~ ^[1-9][0-9]*$ ]] || die "--nj ${nj}: expected a number of jobs"
job_dir=${job_dir:-${output}.jobs}

. ./path.sh
. ./cmd.sh
bayeslm=("${PYTHON}" -m espnet_bayeslm.bin.bayeslm)
mkdir -p "${job_dir}/log"
for ((job = 1; job <= nj; job++)); do
    merge+=(--merge "${job_dir}/${job}")
done

# the part of one job
run_job() {
    [ -e "${job_dir}/$1/job.yaml" ] || "${bayeslm[@]}" rescore "${scoring[@]}" \
        --job "$1" --num_jobs "${nj}" --output "${job_dir}/$1"
}

cmd=${cmd:-${decode_cmd:-}}
if [ -n "${cmd}" ]; then
    # `run.pl` and the like replace it by the job's number in all words: it must be in none of ours
    number=JOB
    while [[ "${job_dir} ${bayeslm[*]} ${scoring[*]}" == *"${number}"* ]]; do number+=_; done
    # shellcheck disable=SC2086  # a program and its options
    ${cmd} "${number}=1:${nj}" "${job_dir}/log/rescore.${number}.log" \
        "${bayeslm[@]}" rescore "${scoring[@]}" \
        --job "${number}" --num_jobs "${nj}" --output "${job_dir}/${number}"
else
    jobs=()
    for ((job = 1; job <= nj; job++)); do
        run_job "${job}" > "${job_dir}/log/rescore.${job}.log" 2>&1 &
        jobs+=($!)
    done
    for ((job = 1; job <= nj; job++)); do
        wait "${jobs[job - 1]}" || die "job ${job} failed: see ${job_dir}/log/rescore.${job}.log"
    done
fi
"${bayeslm[@]}" rescore "${merge[@]}" "${choosing[@]}" --output "${output}"
