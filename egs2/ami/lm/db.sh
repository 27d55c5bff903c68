# shellcheck shell=bash disable=SC2034  # read by local/data.sh and local/nbest.sh
# Where the data lie. An environment variable of the same name wins over what stands here.

# The text of the meetings, in one of two forms:
# the public manual annotations of the AMI corpus (ami_public_manual_1.6.2.zip, its folder, or the
# folder that one of them lies in), from https://groups.inf.ed.ac.uk/ami/download/ ...
AMI=
# ... or a folder with train.txt, dev.txt and eval.txt: one sentence a line, words only.
AMI_TEXT=

# More training text, if at hand: the folder with the transcripts of LDC2004T19 and LDC2005T19
# (fe_03_p1_tran, fe_03_p2_tran), or one of the two.
FISHER=

# N-best lists: a folder with {dev,eval}_CONDITION, Kaldi N-best archives, or
# decode_{dev,eval}_CONDITION, Kaldi decode folders with lattices as text (README.md).
NBEST=
# Their references, where no `text` stands with the lists: a folder with SET_CONDITION/text or SET/text.
NBEST_TEXT=
