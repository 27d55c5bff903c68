"""Trainings in processes of their own, forked from this one, which has ESPnet loaded.

They can be killed, and change what belongs to a whole process (limits, file systems).
"""

import contextlib
import logging
import multiprocessing
import os
import sys

import torch
from tiny_training import training

from espnet_bayeslm.training.launch import run_program

# Autograd's threads, which a GPU needs, do not survive a fork.
CONTEXT = multiprocessing.get_context("forkserver" if torch.cuda.is_available() else "fork")
CONTEXT.set_forkserver_preload(["espnet_bayeslm.training.task", "espnet2.bin.lm_train", "pytest"])
PROGRAM = "espnet2.bin.lm_train"


def lm_train(words, log, around):
    """Run ESPnet's lm_train as `python -m espnet_bayeslm` does, in the context `around`."""
    with open(log, "a") as f:
        os.dup2(f.fileno(), 1)
        os.dup2(f.fileno(), 2)
    # pytest's, in a forked process
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    logging.getLogger().handlers.clear()
    torch.set_num_threads(1)
    make, *arguments = around
    with make(*arguments):
        run_program(PROGRAM, words)


def start(corpus, output, *options, max_epoch, around=(contextlib.nullcontext,)):
    """Start a training, which resumes what it finds; return its process."""
    words = training(corpus, output, "--resume", "true", *options, max_epoch=max_epoch)
    process = CONTEXT.Process(target=lm_train, args=(words, log_of(output), around))
    process.start()
    return process


def log_of(output):
    return output.with_name(f"{output.name}.log")


def finish(process):
    """Wait for a process and return its exit status, minus the signal's number if killed."""
    process.join(3600)  # only a hang takes so long
    if process.is_alive():
        process.kill()
        raise AssertionError("a training that does not end")
    return process.exitcode


def train(corpus, output, *options, **kwargs):
    status = finish(start(corpus, output, *options, **kwargs))
    assert status == 0, log_of(output).read_text()[-3000:]
    return output
