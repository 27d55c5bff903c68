"""Models of trained LMs and their text, built without ESPnet's LM task.

That task imports text-to-phoneme converters, NLTK and transformers, which takes ten seconds; an
LM needs one class and one tokenizer of it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence, Tuple

from espnet2.lm.espnet_model import ESPnetLanguageModel

from espnet_bayeslm import register
from espnet_bayeslm.bayes import Posterior
from espnet_bayeslm.bayes.kinds import KINDS, current_names, is_posterior_key
from espnet_bayeslm.bayes.weights import add_whole_posterior
from espnet_bayeslm.lm import UncertainLM
from espnet_bayeslm.lm.espnet import BACKBONES
from espnet_bayeslm.lm.mixture import LM_CLASSES, MixtureLM
from espnet_bayeslm.loading.checkpoint import check_fits, load_state
from espnet_bayeslm.pretrained.adapted import AdaptedLM
from espnet_bayeslm.pretrained.names import PRETRAINED
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.yaml_numbers import conf_numbers

# Names that a configuration gives our LM of several LMs, our model and our optimizer.
MIXTURE, MODEL, OPTIM = "mixture", "bayes_lm", "ivon"
TRAINED_CLASSES = {**LM_CLASSES, PRETRAINED: AdaptedLM}
"""LMs that `bayes_lm` trains, by their names in ESPnet's registry."""

TextReader = Tuple[Callable[[str], List[str]], Callable[[Sequence[str]], List[int]]]


def lm_classes() -> Dict[str, Any]:
    """LMs that are built here, by their names in ESPnet's registry."""
    espnets = {name: BACKBONES[name].espnet_class for name in ("seq_rnn", "transformer")}
    return {**TRAINED_CLASSES, MIXTURE: MixtureLM, **espnets}


def build_model(args: argparse.Namespace) -> ESPnetLanguageModel:
    """ESPnet's model around a new LM, whose weights a checkpoint will replace.

    The loss of the model is the NLL, however the LM was trained. An LM that is not in `lm_classes`
    is built by ESPnet.
    """
    model = getattr(args, "model", None) or "lm"
    if args.lm not in lm_classes() or model not in ("lm", MODEL):
        from espnet_bayeslm.loading.espnet_tasks import LMTask

        register()
        return LMTask.build_model(args)
    size = len(args.token_list)
    lm_class = lm_classes()[args.lm]
    # a mixture's has the names of files and tokens; `export` wrote it
    lm_conf = args.lm_conf if args.lm == MIXTURE else conf_numbers(args.lm_conf, lm_class)
    lm = lm_class(vocab_size=size, **lm_conf)
    # how a model is trained is of no account here
    ignore_id = (getattr(args, "model_conf", None) or {}).get("ignore_id", 0)
    return ESPnetLanguageModel(lm, size, ignore_id)


def add_ivon_posterior(lm: Any) -> None:
    """Add the buffers in which `optim: ivon` keeps the posterior over all weights of an LM.

    Raises:
        InputError: Some of the LM is uncertain already.
    """
    if not isinstance(lm, UncertainLM):
        lm.posterior = Posterior(lm)
    add_whole_posterior(lm.posterior, getattr(lm, "trained", "*"))


def load_model(args: argparse.Namespace, checkpoint: Path, *, posterior: bool = False) -> Any:
    """ESPnet's model of a training with the weights of a checkpoint, which must be whole.

    With `posterior` posteriors must match too; else any posterior, or none, is accepted.

    Raises:
        InputError: The checkpoint cannot be read, or does not fit.
    """
    model: Any = build_model(args)
    if args.optim == OPTIM:
        add_ivon_posterior(model.lm)
    state = load_state(checkpoint)
    check_fits(state, model, path=checkpoint, posterior=posterior)
    if not posterior:
        _check_posterior(state, model, path=checkpoint)
    model.load_state_dict(state)
    return model


def _check_posterior(state: Any, model: ESPnetLanguageModel, *, path: Path) -> None:
    """Raise an InputError where a point-estimate checkpoint is read as an uncertain LM's."""
    keys = [
        key
        for key in model.state_dict()
        if is_posterior_key(key) and not any(key.endswith(kind.may_lack) for kind in KINDS.values())
    ]
    given = current_names(state)
    missing = [key for key in keys if key not in given]
    if missing:
        raise InputError(
            f"the configuration has uncertain weights, and {len(missing)} of their {len(keys)}"
            f" tensors are not in the checkpoint (the first is {missing[0]})",
            path=path,
            remedy="Use the config.yaml of the run that wrote the checkpoint.",
        )


def text_reader(args: argparse.Namespace) -> TextReader:
    """ESPnet's tokenizer (with its text cleaner), and its map of tokens to ids.

    Raises:
        InputError: The LM was trained without any.
    """
    from espnet2.text.token_id_converter import TokenIDConverter

    if not args.use_preprocessor:
        raise InputError(
            "use_preprocessor is false, so the LM cannot read text",
            remedy="Give an LM that was trained with use_preprocessor: true.",
        )
    text2tokens = tokenizer(args).text2tokens
    ids = TokenIDConverter(token_list=args.token_list, unk_symbol="<unk>").tokens2ids
    cleaner = getattr(args, "cleaner", None)
    if cleaner is None:
        return text2tokens, ids
    from espnet2.text.cleaner import TextCleaner

    clean = TextCleaner(cleaner)
    return lambda text: text2tokens(clean(text)), ids


def tokenizer(args: argparse.Namespace) -> Any:
    """ESPnet's tokenizer of a trained LM.

    Raises:
        InputError: The LM's tokens are of no kind of an LM, or the word-piece model is missing.
    """
    if args.token_type == "word":
        from espnet2.text.word_tokenizer import WordTokenizer

        return WordTokenizer()
    if args.token_type == "char":
        from espnet2.text.char_tokenizer import CharTokenizer

        symbols = getattr(args, "non_linguistic_symbols", None)
        return CharTokenizer(non_linguistic_symbols=symbols)
    if args.token_type == "bpe":
        from espnet2.text.sentencepiece_tokenizer import SentencepiecesTokenizer

        if not Path(args.bpemodel).is_file():
            raise InputError(
                "its word-piece model is not there",
                path=args.bpemodel,
                remedy="Put it where config.yaml has it (bpemodel), or into EXP/data.",
            )
        return SentencepiecesTokenizer(args.bpemodel, {})
    raise InputError(f"token_type {args.token_type!r}: expected word, char or bpe")
