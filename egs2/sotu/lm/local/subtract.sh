#!/usr/bin/env bash
# Speech of one domain, recognised with the LM of another: what subtracting that LM is worth.
#   local/subtract.sh --ami ../../ami/lm/data --sotu data --output exp/subtract [--nj 2] [--dev 300] [--test 500]
# --ami and --sotu have {train,dev}/text and {eval,test}/text. Both directions: the addresses' 3-gram on
# AMI's sentences, and the reverse. The lists have one score, as those of an end-to-end recogniser:
# acoustic score / 9.5 + ln P of the recogniser's LM. --output gets FIRST_to_SECOND.txt.
set -euo pipefail

die() { echo "subtract.sh: error: $*" >&2; exit 1; }

ami=
sotu=
output=
nj=2
dev=300
test=500
while [ $# -gt 0 ]; do
    case "$1" in
        --ami | --sotu | --output | --nj | --dev | --test)
            [ $# -ge 2 ] || die "the option $1 needs a value"
            printf -v "${1#--}" '%s' "$2"
            shift 2
            ;;
        *) die "unknown option '$1': expected --ami, --sotu, --output, --nj, --dev or --test" ;;
    esac
done
for option in ami sotu; do
    [ -f "${!option}/train/text" ] || die "--${option} ${!option}: no train/text in it; run stage 1 of its recipe"
done
[ -n "${output}" ] || die "--output is needed"

. ./path.sh
bayeslm=("${PYTHON}" -m espnet_bayeslm.bin.bayeslm)
mkdir -p "${output}"
for domain in ami sotu; do
    cut -d' ' -f2- "${!domain}/train/text" > "${output}/${domain}.txt"
    for order in 2 3; do
        "${bayeslm[@]}" ngram --text "${output}/${domain}.txt" --order ${order} \
            --discount_fallback true --arpa "${output}/${domain}_${order}gram.arpa"
    done
done

# SOURCE TARGET SET: lists of the target's speech by a recogniser with the source's LM
lists() {
    local text=${!2}/$3/text count=${dev}
    [ "$3" = dev ] || count=${test}
    "${PYTHON}" local/nbest.py --text "${text}" --num_sentences "${count}" --max_words 20 --voice us \
        --lm "${output}/$1_3gram.arpa" --output "${output}/$1_to_$2/$3" --work "${output}/work" --nj "${nj}"
    "${PYTHON}" local/total_scores.py "${output}/$1_to_$2/$3_us" "${output}/$1_to_$2/$3.jsonl"
}

# SOURCE TARGET TEST_SET: the table
compare() {
    local folder=${output}/$1_to_$2 subtract set scales hyps=()
    lists "$1" "$2" dev
    lists "$1" "$2" "$3"
    for name in nothing 2gram 3gram; do
        subtract=()
        [ ${name} = nothing ] || subtract=(--subtract_lm "${output}/$1_${name}.arpa")
        for set in dev "$3"; do
            scales=()
            [ "${set}" = dev ] || scales=(--scales "${folder}/${name}/dev/scales.yaml")
            "${bayeslm[@]}" rescore --nbest "${folder}/${set}.jsonl" --nbest_format jsonl \
                --ngram "${output}/$2_3gram.arpa" "${subtract[@]}" "${scales[@]}" --max_oov_rate 0.5 \
                --output "${folder}/${name}/${set}"
        done
        hyps+=(--hyp "less_${name}=${folder}/${name}/$3/text")
    done
    "${bayeslm[@]}" score --ref "${folder}/$3_us/text" "${hyps[@]}" | tee "${folder}.txt"
}

compare sotu ami eval
compare ami sotu test
