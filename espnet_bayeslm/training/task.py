"""ESPnet's LM task for our LMs: counts the training tokens and loads the prior."""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import difflib
import gc
import inspect
import math
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

import torch
from espnet2.train.abs_espnet_model import AbsESPnetModel
from espnet2.train.distributed_utils import get_node_rank, get_rank

from espnet_bayeslm.bayes.base_kinds import KINDS, is_posterior_key
from espnet_bayeslm.lm import LMS, UNTRAINED, UncertainLM
from espnet_bayeslm.lm.espnet import BACKBONES
from espnet_bayeslm.lm.uncertain import drop_posterior
from espnet_bayeslm.loading.experiment import (
    check_token_list,
    load_state,
    read_checkpoint,
    read_config,
)
from espnet_bayeslm.loading.trained_lm import MODEL, OPTIM, check_fits
from espnet_bayeslm.pretrained.adapted import AdaptedLM
from espnet_bayeslm.pretrained.names import PRETRAINED, TOKEN_TYPE
from espnet_bayeslm.training.batches import MixedSampler, count_tokens, with_sentence_ends
from espnet_bayeslm.training.ivon import IVON
from espnet_bayeslm.training.model import (
    REMOVED,
    START_PRIOR,
    ZERO_PRIOR,
    BayesLanguageModel,
)
from espnet_bayeslm.training.optimizer import (
    POSTERIOR,
    adam_groups,
    add_optimizer_posterior,
    fused_on_cpu,
    parameters_of,
    split_posterior,
)
from espnet_bayeslm.training.text import SentencePreprocessor
from espnet_bayeslm.training.trainer import BayesLMTrainer
from espnet_bayeslm.training.warmup import check_warmup
from espnet_bayeslm.training.whole_files import writing_errors
from espnet_bayeslm.utils.cli import device_of
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_lines, split_files
from espnet_bayeslm.utils.folders import folder_lock
from espnet_bayeslm.utils.imports import quiet_imports
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import as_numbers

with quiet_imports():
    from espnet2.tasks.abs_task import optim_classes, scheduler_classes
    from espnet2.tasks.lm import LMTask, lm_choices, model_choices

# On import, so that spawned workers, which import this module, have the classes too.
# LMS imports a class when it is chosen.
lm_choices.classes = collections.ChainMap(lm_choices.classes, LMS)
model_choices.classes[MODEL] = BayesLanguageModel
optim_classes[OPTIM] = IVON


def check_init_param(init_param: str, model: torch.nn.Module, *, complete: bool) -> None:
    """Check an `--init_param PATH[:SOURCE[:TARGET[:EXCLUDED,..]]]` before ESPnet loads it.

    A part of an LM ignores a posterior that it has no place for, as the whole LM does.
    """
    path, source, target, excluded = [*init_param.split(":"), "", "", ""][:4]
    state = load_state(path)
    if excluded:
        state = {k: v for k, v in state.items() if not k.startswith(tuple(excluded.split(",")))}
    if source:
        state = {k[len(source) + 1 :]: v for k, v in state.items() if k.startswith(source)}
    if not state:
        raise InputError(f"no tensor of it is named {source}...", path=path)
    try:
        module = model.get_submodule(target)
    except AttributeError:
        raise InputError(f"--init_param {init_param}: the model has no {target}") from None
    if complete:
        check_fits(state, module, path=path, complete=not excluded)
    if not any(isinstance(part, UncertainLM) for part in module.modules()):
        module.register_load_state_dict_pre_hook(drop_posterior)


def check_run(checkpoint: Any, *, path: Any) -> None:
    """Check that the content of a checkpoint is a training that can be resumed."""
    types = {"model": Mapping, "optimizers": list, "schedulers": list, "reporter": Mapping}
    parts = checkpoint if isinstance(checkpoint, Mapping) else {}
    wrong = [name for name, kind in types.items() if not isinstance(parts.get(name), kind)]
    if not wrong:
        epoch, stats = (parts["reporter"].get(name) for name in ("epoch", "stats"))
        are_states = all(isinstance(state, Mapping) for state in parts["optimizers"])
        if not (isinstance(epoch, int) and isinstance(stats, Mapping) and are_states):
            wrong = ["reporter", "optimizers"]
    if wrong:
        raise InputError(
            f"cannot be resumed: {', '.join(wrong)} of the training not in it",
            path=path,
            remedy="Restore the file, or delete it and train again.",
        )


def check_resume(checkpoint: Path, model: torch.nn.Module, args: argparse.Namespace) -> None:
    """Check that the checkpoint of a stopped training fits this model and these tokens."""
    check_fits(load_state(checkpoint), model, path=checkpoint, posterior=True)
    run = read_checkpoint(checkpoint)
    check_run(run, path=checkpoint)
    is_split = bool(adam_groups(model))
    if any((POSTERIOR in state) != is_split for state in run["optimizers"]):
        raise InputError(
            f"the run was trained {'without' if is_split else 'with'} an optimizer of its own for"
            " what makes the LM uncertain",
            path=checkpoint,
            remedy="Set model_conf posterior_lr and architecture_lr (null: none) as they were, or"
            " --resume false.",
        )
    config = checkpoint.with_name("config.yaml")
    tokens = list(args.token_list)
    try:
        before = read_config(config).token_list if config.exists() else tokens
    except InputError as error:
        # ESPnet writes it in place, at each start: a kill may have cut it short
        LOG.warning(f"{error}: it is written anew")
        before = tokens
    if before != tokens:
        raise InputError(
            "was trained with another token list",
            path=checkpoint.parent,
            remedy="Give a new --output_dir, or --resume false.",
        )


# Arguments that do not come from a configuration
GIVEN_BY_TASK = ("self", "lm", "vocab_size", "token_list", "ignore_id", "params", "optimizer")
CHOSEN_BY_NAME = {"optim": optim_classes, "scheduler": scheduler_classes}


def check_conf(name: str, cls: Any, conf: Mapping[str, Any]) -> None:
    """Check the keys of `lm_conf`, `model_conf`, `optim_conf` or `scheduler_conf`."""
    parameters = inspect.signature(cls).parameters.values()
    named = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    valid = [key for key in named if key not in GIVEN_BY_TASK]
    for key, value in conf.items():
        if name == "model" and value != REMOVED.get(key, value):
            raise InputError(
                f"model_conf: {key} {value} was removed, no training has it any more",
                remedy="Leave it out. A trained LM of such a configuration still scores.",
            )
        if key not in (*valid, *REMOVED) and key != "ignore_id":
            near = difflib.get_close_matches(str(key), valid, n=1)
            kind = next((kind for kind in KINDS.values() if hasattr(kind, key)), None)
            remedy = ""
            if near:
                remedy = f"Did you mean {near[0]}?"
            elif name == "lm" and kind:
                location = f"{{LOCATION: {{kind: {kind.name}, {key}: ...}}}}"
                remedy = f"It is an option of a location: uncertainty: {location}."
            elif name in CHOSEN_BY_NAME:
                remedy = f"With another --{name} those of the configuration stay: change a copy of"
                remedy += " it (`bayeslm configs NAME --output FILE`)."
            raise InputError(
                f"{name}_conf: {cls.__name__} has no {key!r}; valid are {', '.join(valid)}",
                remedy=remedy,
            )


def chosen_classes(args: argparse.Namespace) -> Dict[str, Any]:
    """Class that each `*_conf` configures; None where none is chosen."""
    named = CHOSEN_BY_NAME.items()
    found = {name: classes.get((getattr(args, name) or "").lower()) for name, classes in named}
    lm, model = lm_choices.get_class(args.lm), model_choices.get_class(args.model)
    return {"lm": lm, "model": model, **found}


def complete(args: argparse.Namespace) -> argparse.Namespace:
    """Choose the model where none is named; make numbers of words as `1e-3` in all `*_conf`."""
    if args.model is None:
        args.model = MODEL if args.lm in LMS and args.lm not in UNTRAINED else "lm"
    chosen = chosen_classes(args)
    for option, value in vars(args).items():
        if option.endswith("_conf") and isinstance(value, dict):
            setattr(args, option, as_numbers(value, chosen.get(option.removesuffix("_conf"))))
    return args


class BayesLMTask(LMTask):
    """ESPnet's LM task, which trains LMs of this package by `--model bayes_lm`."""

    trainer = BayesLMTrainer

    @classmethod
    def get_parser(cls) -> argparse.ArgumentParser:
        """ESPnet's parser; `--model` is chosen after the LM is known."""
        parser = super().get_parser()
        parser.set_defaults(model=None)
        types = next(action for action in parser._actions if action.dest == "token_type")
        types.choices = [*dict.fromkeys([*(types.choices or ()), TOKEN_TYPE])]
        return parser

    @classmethod
    def parse(cls, cmd: Optional[Sequence[str]]) -> argparse.Namespace:
        """ESPnet's options from a command line (None: sys.argv); words as `1e-3` are numbers."""
        return complete(cls.get_parser().parse_args(cmd))

    @classmethod
    def main(
        cls, args: Optional[argparse.Namespace] = None, cmd: Optional[Sequence[str]] = None
    ) -> None:
        """Train in this process, or in workers that it spawns."""
        args = cls.parse(cmd) if args is None else complete(args)
        spawns = args.multiprocessing_distributed and args.output_dir is not None
        if spawns and not get_node_rank(args.dist_rank, args.dist_launcher):
            with folder_lock(args.output_dir):
                pass  # a worker would say the same, with a worker's traceback
        super().main(args=args)

    @classmethod
    def main_worker(cls, args: argparse.Namespace) -> None:
        """Train in this process."""
        if args.lm in UNTRAINED:
            raise InputError(
                f"--lm {args.lm} is not trained",
                remedy="Train its LMs and join them by `bayeslm export --lm EXP --lm EXP"
                " --weights FILE --output DIR`.",
            )
        device_of(args.ngpu)
        with writing_errors(Path(args.output_dir)), contextlib.ExitStack() as stack:
            if not (args.distributed and get_rank(args.dist_rank, args.dist_launcher)):
                # one rank for all of a job
                stack.enter_context(folder_lock(args.output_dir))
            super().main_worker(args)
        if torch.distributed.is_initialized():
            # A rank that leaves while others still speak to it may abort instead, or while what
            # uses the group (DistributedDataParallel, in cycles of references) is still there.
            gc.collect()
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()

    @classmethod
    def build_model(cls, args: argparse.Namespace) -> AbsESPnetModel:
        """Build the model and make it ready for training."""
        if isinstance(args.token_list, str):
            tokens = [line.rstrip() for _, line in read_lines(args.token_list)]
            if args.token_type != TOKEN_TYPE:
                check_token_list(tokens, path=args.token_list)
        for name, chosen in chosen_classes(args).items():
            if chosen is not None:
                check_conf(name, chosen, getattr(args, f"{name}_conf"))
        model = super().build_model(args)
        if isinstance(model.lm, AdaptedLM):
            # config.yaml has it: another base would give other words
            args.lm_conf = {**args.lm_conf, "fingerprint": model.lm.fingerprint}
        if args.init is not None and isinstance(model.lm, UncertainLM):
            # --init re-initialises every matrix, standard deviations too
            model.lm.reset_posterior()
        if args.optim == OPTIM:
            add_optimizer_posterior(model)
        if not args.collect_stats:
            if getattr(model.lm, "locations", list)() and not isinstance(model, BayesLanguageModel):
                raise InputError(
                    f"--model {args.model} would train uncertain weights without their KL",
                    remedy="Use --model bayes_lm; its kl_weight: 0.0 leaves the KL out.",
                )
            cls.prepare_training(model, args)
        return model

    @classmethod
    def build_preprocess_fn(cls, args: argparse.Namespace, train: bool) -> Any:
        """ESPnet's reader of sentences, or the reader of a pretrained LM's tokenizer."""
        if getattr(args, "lm", None) == PRETRAINED:
            return SentencePreprocessor(args, train=train)
        return super().build_preprocess_fn(args, train)

    @classmethod
    def build_optimizers(
        cls, args: argparse.Namespace, model: torch.nn.Module
    ) -> List[torch.optim.Optimizer]:
        """Build ESPnet's optimizer, and Adam for parameters with a rate of their own.

        Log standard deviations get no weight decay: it would pull each of them towards 1,
        which no prior asks for.
        """
        conf = fused_on_cpu(optim_classes[args.optim.lower()], args.optim_conf, model)
        # a copy, since config.yaml has what was asked for
        fused = argparse.Namespace(**{**vars(args), "optim_conf": conf})
        try:
            (optimizer,) = super().build_optimizers(fused, model)
        except (TypeError, ValueError) as error:
            raise InputError(f"optim_conf of {args.optim}, {args.optim_conf}: {error}") from error
        if isinstance(optimizer, IVON):
            if isinstance(model, BayesLanguageModel) and model.num_train_tokens is not None:
                optimizer.set_ess(model.num_train_tokens)
            lm: Any = model.lm
            optimizer.attach(model, lm.posterior)
        log_stds = {id(p) for p in parameters_of(model, POSTERIOR)}
        for group in list(optimizer.param_groups):
            apart = [p for p in group["params"] if id(p) in log_stds]
            if apart and group.get("weight_decay"):
                group["params"] = [p for p in group["params"] if id(p) not in log_stds]
                optimizer.add_param_group({**group, "params": apart, "weight_decay": 0.0})
        return [split_posterior(optimizer, model)]

    @classmethod
    def build_sequence_iter_factory(
        cls, args: argparse.Namespace, iter_options: Any, mode: str
    ) -> Any:
        """Build ESPnet's epochs, in training of at least `min_iters_per_epoch` batches.

        Batches of so many tokens (`length`, `numel`) count the ends of sentences. In training they
        have sentences of all lengths, where the LM computes no padding. ESPnet's own LMs have
        ESPnet's batches.
        """
        files, lm = iter_options.shape_files, lm_choices.get_class(args.lm)
        counted = issubclass(lm, UncertainLM) and iter_options.batch_type in ("length", "numel")
        with with_sentence_ends(files) if counted else contextlib.nullcontext(files) as shapes:
            options = dataclasses.replace(iter_options, shape_files=shapes)
            factory = super().build_sequence_iter_factory(args, options, mode)
        # `bayes_espnet` is of its backbone's class
        own = BACKBONES.get(args.lm_conf.get("backbone"), lm)
        if mode == "train" and counted and own.skips_padding:
            factory.sampler = MixedSampler(list(factory.sampler))
        least = args.model_conf.get("min_iters_per_epoch", 0)
        if mode == "train" and args.multiple_iterator:
            # here is one of the parts that make an epoch
            least = math.ceil(least / len(split_files(args.train_shape_file[0])))
        if mode == "train" and factory.num_iters_per_epoch is None and len(factory.sampler) < least:
            LOG.info(f"An epoch is {least} batches, of {len(factory.sampler)} different ones")
            factory.num_iters_per_epoch = least
        return factory

    @classmethod
    def prepare_training(cls, model: AbsESPnetModel, args: argparse.Namespace) -> None:
        """Count the training tokens, load the prior, check the checkpoints that will be read."""
        for init_param in args.init_param:
            check_init_param(init_param, model, complete=not args.ignore_init_mismatch)
        checkpoint = Path(args.output_dir) / "checkpoint.pth"
        if args.resume and checkpoint.exists():
            # Here, since ESPnet writes config.yaml anew before it reads the checkpoint.
            check_resume(checkpoint, model, args)
        if not isinstance(model, BayesLanguageModel):
            return
        if model.num_train_tokens is None:
            model.num_train_tokens = count_tokens(args.train_shape_file)
            LOG.info(f"Training tokens (with </s>): {model.num_train_tokens}")
        check_warmup(model, args)
        prior = args.model_conf.get("prior")
        if prior == ZERO_PRIOR:
            means = {name: p for name, p in model.named_parameters() if not is_posterior_key(name)}
            model.set_prior_means({name: torch.zeros_like(p) for name, p in means.items()})
            LOG.info("The prior's means are zero")
        elif prior not in (None, START_PRIOR):
            state = load_state(prior)
            check_fits(state, model, path=prior)
            model.set_prior_means(state)
            LOG.info(f"The prior's means are the weights of {prior}")
