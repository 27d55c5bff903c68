# shellcheck shell=bash
# Where the data lie: write the path after `:-`. An environment variable of the same name wins.

# LRS2 as the BBC and Oxford give it out: the folder with main/ and pretrain/ (mvlrs_v1) and the
# file lists pretrain.txt, train.txt, val.txt, test.txt in it or beside it.
LRS2=${LRS2:-}

# N-best lists: a folder with {val,test}_CONDITION, Kaldi archives or Kaldi decode directories.
NBEST=${NBEST:-}
