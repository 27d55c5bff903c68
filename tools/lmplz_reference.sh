#!/usr/bin/env bash
# Make tests/ngram/data with KenLM's lmplz, from the root of the repository:
#   tools/lmplz_reference.sh LMPLZ
#
# lmplz comes from the source archive of PyPI's kenlm 0.3.0, on Debian:
#   apt-get install cmake g++ libboost-program-options-dev libboost-system-dev \
#     libboost-thread-dev libboost-test-dev zlib1g-dev libbz2-dev liblzma-dev libeigen3-dev
#   pip download --no-binary kenlm --no-deps kenlm==0.3.0   # `:all:` would compile cmake as well
#   tar xf kenlm-0.3.0.tar.gz && mkdir kenlm-0.3.0/build && cd kenlm-0.3.0/build
#   cmake .. -DCMAKE_BUILD_TYPE=Release && make lmplz       # bin/lmplz
set -euo pipefail

lmplz=${1:?usage: $0 LMPLZ}
data=tests/ngram/data
work=$(mktemp -d)
trap 'rm -r "${work}"' EXIT

mkdir -p "${data}"
python3 tools/lmplz_reference_text.py "${data}"
for order in 1 2 3 4; do
    "${lmplz}" -o "${order}" -S 100M <"${data}/reference.txt" >"${work}/reference"
    gzip -9n <"${work}/reference" >"${data}/reference_${order}.arpa.gz"
    # where the discounts can be estimated, --discount_fallback changes nothing
    "${lmplz}" -o "${order}" -S 100M --discount_fallback <"${data}/reference.txt" |
        cmp - "${work}/reference"
    # without --discount_fallback lmplz refuses the tiny text
    if "${lmplz}" -o "${order}" -S 100M <"${data}/tiny.txt" >"${work}/tiny"; then exit 1; fi
    "${lmplz}" -o "${order}" -S 100M --discount_fallback <"${data}/tiny.txt" |
        gzip -9n >"${data}/tiny_fallback_${order}.arpa.gz"
done
