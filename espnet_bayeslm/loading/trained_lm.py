"""Trained LMs from their experiment folders, built without ESPnet's LM task.

That task imports text-to-phoneme converters, NLTK and transformers, which takes ten seconds; an
LM needs one class and one tokenizer of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import pkgutil
from pathlib import Path
from typing import Any, Callable, List, Mapping, Sequence, Tuple

import torch
from espnet2.lm.abs_model import AbsLM
from espnet2.lm.espnet_model import ESPnetLanguageModel
from espnet2.text.char_tokenizer import CharTokenizer
from espnet2.text.sentencepiece_tokenizer import SentencepiecesTokenizer
from espnet2.text.token_id_converter import TokenIDConverter
from espnet2.text.word_tokenizer import WordTokenizer

from espnet_bayeslm import register
from espnet_bayeslm.bayes import Posterior
from espnet_bayeslm.bayes.base_kinds import KINDS, is_posterior_key
from espnet_bayeslm.lm import LMS, UNTRAINED
from espnet_bayeslm.lm.uncertain import UncertainLM
from espnet_bayeslm.loading.experiment import (
    WHISPER_TYPES,
    check_token_list,
    find_files,
    fingerprint,
    load_state,
    read_config,
    read_unk_size,
)
from espnet_bayeslm.pretrained.names import PRETRAINED
from espnet_bayeslm.scoring.scorer import LMScorer, token_scorer
from espnet_bayeslm.scoring.uncertainty import Uncertainty
from espnet_bayeslm.scoring.unknown_words import usual_unk_size
from espnet_bayeslm.scoring.word_scores import Text, WordScores, sentences_of, words_of
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.espnet_versions import text_cleaner
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.imports import quiet_imports
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import as_numbers

# Names that a configuration gives our model and our optimizer.
MODEL, OPTIM = "bayes_lm", "ivon"
# ESPnet's own LMs -> their classes
ESPNET_LMS = {
    "seq_rnn": "espnet2.lm.seq_rnn_lm:SequentialRNNLM",
    "transformer": "espnet2.lm.transformer_lm:TransformerLM",
}

TextReader = Tuple[Callable[[str], List[str]], Callable[[Sequence[str]], List[int]]]


class LoadedLM:
    """An LM as `espnet_bayeslm.load` returns it: it scores sentences, strings or lists of words."""

    def _scorer(self, num_samples: int) -> LMScorer:
        """Scorer of sentences, with weight samples or the posterior mean (0)."""
        raise NotImplementedError

    def score(self, text: Text, *, num_samples: int = 0) -> float:
        """Ln P(text, end) of a sentence, a string or its words, in nats.

        With `num_samples` the probabilities of so many weight samples are averaged; 0: the
        posterior mean.
        """
        return float(self.word_scores([text], num_samples=num_samples)[0].log_probs.sum())

    def word_scores(self, texts: Sequence[Text], *, num_samples: int = 0) -> List[WordScores]:
        """Ln p of each word and of the end of sentences, strings or lists of words, in nats.

        With `num_samples` the probabilities of so many weight samples are averaged; 0: the
        posterior mean.

        Raises:
            InputError: One string, where a list of sentences is expected.
        """
        return self._scorer(num_samples).word_scores(sentences_of(texts))

    def uncertainty(self, text: Text, *, num_samples: int = 10) -> Uncertainty:
        """Uncertainty of the LM about each word and the end of a sentence, in nats."""
        return self._scorer(num_samples).uncertainty([words_of(text)])[0]


@dataclasses.dataclass(frozen=True)
class TrainedLM(LoadedLM):
    """A trained LM in evaluation mode, and how it reads text.

    Attributes:
        name: The experiment's name.
        path: The checkpoint.
        config: The configuration file.
        fingerprint: Digest of all files that loading has read.
        model: ESPnet's model around the LM.
        lm: The LM itself.
        token_list: All tokens; the index is the id.
        token_type: `word`, `bpe` or `char`.
        tokenize: Cuts a sentence into tokens, by ESPnet's tokenizer.
        ids: Maps tokens to ids; an unknown token has the id of <unk>.
    """

    name: str
    path: Path
    config: Path
    fingerprint: str
    model: ESPnetLanguageModel
    lm: AbsLM
    token_list: List[str]
    token_type: str
    tokenize: Callable[[str], List[str]]
    ids: Callable[[Sequence[str]], List[int]]

    @functools.cached_property
    def unk_size(self) -> float:
        """Words that share the probability of `<unk>`: counted in training, or by Zipf's law."""
        if self.token_type != "word":
            return 1.0
        counted = read_unk_size(self.config.parent)
        size = usual_unk_size(len(self.token_list)) if counted is None else counted
        how = "estimated from the vocabulary" if counted is None else "counted in training"
        LOG.info(f"{self.name}: <unk> stands for {size:.0f} words ({how})")
        return size

    def over_tokens(self) -> TrainedLM:
        """This LM for sentences in tokens, each of which counts as a word."""
        return dataclasses.replace(self, token_type="word", tokenize=lambda text: text.split(" "))

    @property
    def tokens(self) -> List[str]:
        """All tokens; the index is the id."""
        return self.token_list

    def _scorer(self, num_samples: int) -> LMScorer:
        return token_scorer(self, num_samples=num_samples, unk_size=self.unk_size)


def load_lm(path: PathLike, device: str = "cpu") -> TrainedLM:
    """Trained ESPnet LM, ours or any other, from its folder or checkpoint."""
    config, checkpoint = find_files(path)
    args = read_config(config)
    if args.lm == PRETRAINED:
        raise InputError(
            "an adapted pretrained LM, where an LM with tokens of its own was expected", path=path
        )
    check_token_list(args.token_list, path=str(config))
    model = load_model(args, checkpoint).to(device).eval()
    reader = text_reader(args)
    locations = model.lm.locations() if isinstance(model.lm, UncertainLM) else []
    kind = f"uncertain at {', '.join(locations)}" if locations else "point estimates"
    LOG.info(
        f"Loaded {checkpoint}: {args.lm}, {len(args.token_list)} {args.token_type} tokens,"
        f" {sum(p.numel() for p in model.parameters())} weights, {kind}"
    )
    digest = fingerprint(config, checkpoint, args)
    files = config.parent.resolve().name, checkpoint, config, digest
    return TrainedLM(*files, model, model.lm, args.token_list, args.token_type, *reader)


def build_model(args: argparse.Namespace) -> ESPnetLanguageModel:
    """ESPnet's model around a new LM, whose weights a checkpoint will replace.

    The loss of the model is the NLL, however the LM was trained. An LM whose class is not
    known here is built by ESPnet.
    """
    model = getattr(args, "model", None) or "lm"
    cls: Any = None
    if model in ("lm", MODEL) and args.lm in ESPNET_LMS:
        with quiet_imports():
            cls = pkgutil.resolve_name(ESPNET_LMS[args.lm])
    elif model in ("lm", MODEL):
        cls = LMS.get(args.lm)
    if cls is None:
        register()
        with quiet_imports():
            from espnet2.tasks.lm import LMTask
        return LMTask.build_model(args)
    size = len(args.token_list)
    # an LM that `export` wrote has the names of files and tokens
    lm_conf = args.lm_conf if args.lm in UNTRAINED else as_numbers(args.lm_conf, cls)
    lm = cls(vocab_size=size, **lm_conf)
    # how a model is trained is of no account here
    ignore_id = (getattr(args, "model_conf", None) or {}).get("ignore_id", 0)
    return ESPnetLanguageModel(lm, size, ignore_id)


def add_ivon_posterior(lm: Any) -> None:
    """Add the buffers in which `optim: ivon` keeps the posterior over all weights of an LM."""
    from espnet_bayeslm.kinds.whole_posterior import add_whole_posterior

    if not isinstance(lm, UncertainLM):
        lm.posterior = Posterior(lm)
    add_whole_posterior(lm.posterior, getattr(lm, "trained", "*"))


def check_fits(
    state: Mapping[str, torch.Tensor],
    module: torch.nn.Module,
    *,
    path: Any,
    complete: bool = True,
    posterior: bool = False,
) -> None:
    """Check that a checkpoint, of the file `path`, is of a module's architecture.

    If it must be `complete`, it has every tensor of the module. With `posterior` posteriors must
    match too; else any posterior, or none, is accepted.
    """
    every, problem = module.state_dict(), ""
    names = {
        "of the model are not in it": [k for k in every if k not in state] if complete else [],
        "of it have no place in the model": [key for key in state if key not in every],
    }
    if not posterior:
        names = {what: [k for k in x if not is_posterior_key(k)] for what, x in names.items()}
    found = [f"{len(k)} tensors {what} (the first: {k[0]})" for what, k in names.items() if k]
    both = [(key, value, every[key]) for key, value in state.items() if key in every]
    shapes = [part for part in both if part[1].shape != part[2].shape]
    is_float = [part for part in both if part[1].is_floating_point() != part[2].is_floating_point()]
    if found:
        problem = f"the checkpoint is of another architecture: {', '.join(found)}"
    elif shapes:
        key, value, expected = shapes[0]
        problem = (
            f"{key} has shape {tuple(value.shape)} in the checkpoint, expected"
            f" {tuple(expected.shape)} ({len(shapes)} such tensors)"
        )
    elif is_float:
        key, value, expected = is_float[0]
        problem = f"{key} holds {value.dtype}, expected {expected.dtype}"
    if problem:
        raise InputError(
            problem,
            path=path,
            remedy="Use the configuration and the token list that it was trained with.",
        )


def load_model(args: argparse.Namespace, checkpoint: Path, *, posterior: bool = False) -> Any:
    """ESPnet's model of a training with the weights of a checkpoint, which must be whole.

    With `posterior` posteriors must match too; else any posterior is accepted, and none where
    nothing is uncertain.
    """
    model: Any = build_model(args)
    if args.optim == OPTIM:
        add_ivon_posterior(model.lm)
    state = load_state(checkpoint)
    check_fits(state, model, path=checkpoint, posterior=posterior)
    own = model.state_dict()
    lacking = own.keys() - state.keys()
    keys = [key for key in own if lacking and is_posterior_key(key)]
    keys = [k for k in keys if not any(k.endswith(kind.may_lack) for kind in KINDS.values())]
    missing = [key for key in keys if key in lacking]
    if missing:
        raise InputError(
            f"the configuration has uncertain weights, and {len(missing)} of their {len(keys)}"
            f" tensors are not in the checkpoint (the first is {missing[0]})",
            path=checkpoint,
            remedy="Use the config.yaml of the run that wrote the checkpoint.",
        )
    model.load_state_dict(state)
    return model


def _whisper_tokenizer(token_type: str) -> Any:
    """ESPnet's tokenizer of Whisper."""
    from espnet2.text.whisper_tokenizer import OpenAIWhisperTokenizer

    try:
        return OpenAIWhisperTokenizer(token_type)
    except ImportError as error:
        raise InputError(
            f"token_type {token_type} needs the package whisper, which is not installed",
            remedy="Install it as ESPnet's tools/installers/install_whisper.sh does.",
        ) from error


def text_reader(args: argparse.Namespace) -> TextReader:
    """ESPnet's tokenizer (with its text cleaner), and its map of tokens to ids."""
    if not args.use_preprocessor:
        raise InputError(
            "use_preprocessor is false, so the LM cannot read text",
            remedy="Give an LM that was trained with use_preprocessor: true.",
        )
    tokenizer: Any
    if args.token_type == "word":
        tokenizer = WordTokenizer()
    elif args.token_type == "char":
        symbols = getattr(args, "non_linguistic_symbols", None)
        tokenizer = CharTokenizer(non_linguistic_symbols=symbols)
    elif args.token_type in WHISPER_TYPES:
        tokenizer = _whisper_tokenizer(args.token_type)
    elif args.token_type != "bpe":
        raise InputError(f"token_type {args.token_type!r}: expected word, char or bpe")
    elif not Path(args.bpemodel).is_file():
        raise InputError(
            "its word-piece model is not there",
            path=args.bpemodel,
            remedy="Put it where config.yaml has it (bpemodel), or into EXP/data.",
        )
    else:
        tokenizer = SentencepiecesTokenizer(args.bpemodel, {})
    # Whisper's bytes make any text
    unknown = args.token_list[0] if args.token_type in WHISPER_TYPES else "<unk>"
    ids = TokenIDConverter(token_list=args.token_list, unk_symbol=unknown).tokens2ids
    if getattr(args, "cleaner", None) is None:
        return tokenizer.text2tokens, ids
    clean = text_cleaner(args.cleaner)
    return lambda text: tokenizer.text2tokens(clean(text)), ids
