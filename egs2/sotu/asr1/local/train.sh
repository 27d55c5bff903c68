#!/usr/bin/env bash
# Train the recogniser by ESPnet's own stages: tokens, statistics, training. A stopped run goes on.
set -euo pipefail
data=data exp=exp/asr_rnn config=conf/train_asr_rnn.yaml nbpe=200
python=${PYTHON:-python3}

mkdir -p "${exp}" "${data}/token_list/bpe_unigram${nbpe}"
bpe=${data}/token_list/bpe_unigram${nbpe}/bpe
if [ ! -e "${bpe}.model" ]; then
    "${python}" local/tokens.py "${data}/train/text" "${bpe}" "${nbpe}"
fi
options=(--use_preprocessor true --token_type bpe --bpemodel "${bpe}.model" --token_list "${bpe%/*}/tokens.txt" --config "${config}")
paths=()
for set in train valid; do
    folder=${data}/${set/valid/dev}
    paths+=("--${set}_data_path_and_name_and_type" "${folder}/wav.scp,speech,sound")
    paths+=("--${set}_data_path_and_name_and_type" "${folder}/text,text,text")
done
if [ ! -e "${exp}/stats/train/feats_stats.npz" ]; then
    "${python}" -m espnet2.bin.asr_train --collect_stats true "${options[@]}" "${paths[@]}" --batch_type unsorted --normalize none \
        --train_shape_file "${data}/train/wav.scp" --valid_shape_file "${data}/dev/wav.scp" --output_dir "${exp}/stats" --ngpu 0
fi
"${python}" -m espnet2.bin.asr_train "${options[@]}" "${paths[@]}" --resume true --ngpu 0 --output_dir "${exp}" \
    --normalize global_mvn --normalize_conf stats_file="${exp}/stats/train/feats_stats.npz" \
    --train_shape_file "${exp}/stats/train/speech_shape" --valid_shape_file "${exp}/stats/valid/speech_shape"
# ESPnet's recurrent encoder with projections drops units in decoding too: results would be random
sed -i '/^encoder_conf:/,/^[a-z]/ s/^    dropout: .*/    dropout: 0.0/' "${exp}/config.yaml"
