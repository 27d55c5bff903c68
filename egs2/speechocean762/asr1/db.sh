# shellcheck shell=bash
# Where the corpus lies, as `--data` says it too: a copy of github.com/jimbozhang/speechocean762,
# with WAVE, train and test; or a folder with dev and test, each with wav.scp and text as Kaldi has
# them.
SPEECHOCEAN762=
