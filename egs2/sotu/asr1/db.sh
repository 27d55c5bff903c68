# shellcheck shell=bash
# Where a corpus lies: a folder with train, dev and test, each with wav.scp and text as Kaldi has
# them, and lm_train.txt, lm_dev.txt (a sentence a line) for LMs. Empty: speech is synthesised.
ASR_CORPUS=
