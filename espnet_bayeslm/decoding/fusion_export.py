"""Fusion written as an LM of a recogniser's tokens: `lm_train_config` and `lm_file` of ESPnet."""

from __future__ import annotations

import argparse
import contextlib
import re
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from espnet_bayeslm.decoding.bias_search import checked_bias
from espnet_bayeslm.decoding.ctc_ends import weights_of_recogniser
from espnet_bayeslm.decoding.token_words import TokenWords
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.lm import FUSION, UNTRAINED
from espnet_bayeslm.loading.component_options import MixtureOptions
from espnet_bayeslm.loading.components import is_ngram
from espnet_bayeslm.loading.experiment import (
    config_of,
    find_bpemodel,
    find_files,
    is_s2t,
    load_state,
    special_ids,
    token_difference,
)
from espnet_bayeslm.loading.export import (
    NGRAMS,
    check_target,
    reading_options,
    write_folder,
)
from espnet_bayeslm.loading.token_text import check_ngram
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.mixture.mixture_export import mixture_part
from espnet_bayeslm.mixture.word_mixture import Mixture
from espnet_bayeslm.pretrained.text_forms import AUTO, first_sentences
from espnet_bayeslm.recognisers.espnet_asr import ASR_FILES, check_one_speaker
from espnet_bayeslm.rescoring.rescore_options import BIAS_WEIGHT
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_keyed_lines, read_yaml_mapping

INTERVAL, LONG_INTERVAL = 4, 8
"""Tokens after which words are paid, with LMs; the long one where tokens are short."""
FEW_TOKENS = 1000
"""A recogniser with fewer tokens has short ones: two words take about eight."""
# Fields of `ComponentOptions` that say which components there are and how they score
KEPT = ("lms", "ngrams", "num_samples", "unk_size", "precision", "base", "max_tokens")


class LookAhead(NamedTuple):
    """A small LM of the recogniser's tokens.

    Attributes:
        path: Experiment or checkpoint of an LM, or an n-gram over the tokens.
        weight: Its weight where the words' mixture has weight 1.
        stays: True if its scores stay; False: they are taken back when a word is paid.
    """

    path: PathLike
    weight: float
    stays: bool


def write_fusion(
    folder: PathLike,
    *,
    asr_exp: PathLike,
    options: MixtureOptions,
    ahead: Optional[LookAhead] = None,
    interval: Optional[int] = None,
    normalize: str = "",
    sentences: Optional[Sequence[Sequence[str]]] = None,
    bias: Any = None,
    bias_weight: float = BIAS_WEIGHT,
) -> None:
    """Write LMs of any tokens as one LM over the tokens of a recogniser, which ESPnet loads.

    The folder has `config.yaml`, `valid.loss.ave.pth` with the weights of the look-ahead, and the
    n-grams in `ngrams/`. LMs stay where they are, and the configuration names them.

    Args:
        folder: Folder to write.
        asr_exp: The recogniser's experiment, a checkpoint in it, or its config.yaml.
        options: The LMs and n-grams with their weights; none with a bias list alone.
        ahead: The look-ahead; None with a bias list alone.
        interval: Words are paid at each so many tokens of a hypothesis; None: `LONG_INTERVAL` with
            LMs and few tokens, `INTERVAL` with many, and 1 with n-grams alone.
        normalize: What is done to a word before an LM reads it, as `--normalize`.
        sentences: Sentences of the recogniser's domain, as it writes them. They choose the text
            form of pretrained LMs, and show LMs that do not know the recogniser's words. None: the
            validation text that the recogniser's configuration names.
        bias: Bias list of every utterance: a file or phrases. None: there is none.
        bias_weight: Weight of a phrase where that of the LMs is 1, in nats.
    """
    normalization = Normalization(normalize)
    normalization.check_by_word("--format fusion")
    config, tokens, ids = recogniser_config(asr_exp)
    check_target(folder, sources=[lm for lm in options.lms if Path(str(lm)).exists()])
    conf: Dict[str, Any] = {"tokens": tokens, "normalize": normalize}
    with_lms = LONG_INTERVAL if len(tokens) < FEW_TOKENS else INTERVAL
    conf["interval"] = interval or (with_lms if options.lms else 1)
    if ids:
        conf["ids"] = ids
    if bias is not None:
        phrases = checked_bias(bias, TokenWords(tokens), normalization).weights
        conf.update(bias=dict(phrases), bias_weight=bias_weight)
    parts: List[Dict[str, Any]] = []
    state: Dict[str, Any] = {}
    copies: Dict[str, PathLike] = {}
    if ahead is not None:
        parts, state, copies = _look_ahead(ahead, asr_exp, tokens)
        conf.update(ahead=parts, ahead_weight=ahead.weight, takes_back=not ahead.stays)
    if options.lms or options.ngrams:
        if sentences is None:
            sentences = validation_text(config)
        read = [normalization.words(words) for words in sentences]
        conf.update(_components(options, read))
    # n-grams cost less than CTC
    ctc = _ctc(asr_exp, config) if options.lms else {}
    state.update({f"lm.ctc.{name}": value for name, value in ctc.items()})
    conf["ctc_features"] = ctc["projection.weight"].size(1) if ctc else 0
    files: Dict[str, PathLike] = {f"{NGRAMS}/{Path(path).name}": path for path in options.ngrams}
    if len(files) < len(options.ngrams):
        raise InputError("two n-grams have one file name", remedy="Rename one.")
    if "components" in conf:
        conf["components"]["ngrams"] = [str(Path(folder) / name) for name in files]
    args = argparse.Namespace(**config)
    for name, path in copies.items():
        files[name] = path
        parts[0]["path"] = str(Path(folder) / name)
    write_folder(
        folder, args, {"lm": FUSION, "lm_conf": conf, **reading_options(args)}, state, None, files
    )


@contextlib.contextmanager
def bias_fusion(asr_exp: PathLike, normalize: str = "") -> Iterator[Path]:
    """Folder with a fusion of no LM, while it is loaded: bias lists are given to its search.

    Args:
        asr_exp: The recogniser's experiment, a checkpoint in it, or its config.yaml.
        normalize: What is done to a word before it is compared with phrases, as `--normalize`.
    """
    with tempfile.TemporaryDirectory() as folder:
        none = MixtureOptions()
        output = Path(folder) / FUSION
        write_fusion(output, asr_exp=asr_exp, options=none, normalize=normalize, bias=())
        yield output


def _components(options: MixtureOptions, read: Sequence[Sequence[str]]) -> Dict[str, Any]:
    """Configuration of the LMs and n-grams, which are tried on some sentences."""
    mixture = Mixture.load(options)
    _prepare(mixture, read, options)
    mixture.check_words(read)
    facts = mixture.facts
    kept = {name: getattr(options, name) for name in KEPT}
    return {
        "components": {**kept, "lms": [*map(str, options.lms)]},
        "text_forms": facts.text_forms,
        "weights": facts.weights.tolist(),
        "digests": facts.digests,
    }


def recogniser_config(
    asr_exp: PathLike,
) -> Tuple[Dict[str, Any], List[str], Dict[str, Optional[int]]]:
    """Configuration of a recogniser, with the path of its BPE model, its tokens, their ids.

    The ids are those of blank, start and end; empty where they are ESPnet's.
    """
    path = config_of(asr_exp)
    check_one_speaker(path)
    config = read_yaml_mapping(path)
    tokens = config.get("token_list")
    if not isinstance(tokens, list):
        raise InputError(
            "no `token_list` in it",
            path=path,
            remedy="Give the experiment of an ESPnet recogniser.",
        )
    tokens = list(map(str, tokens))
    ids = special_ids(config, tokens, path=str(path))
    if config.get("bpemodel"):
        config["bpemodel"] = str(find_bpemodel(config["bpemodel"], path) or config["bpemodel"])
    return config, tokens, ids


def validation_text(config: Mapping[str, Any]) -> List[List[str]]:
    """Sentences of the validation text of a recogniser's training; none where it is not there."""
    sets = config.get("valid_data_path_and_name_and_type") or []
    paths = [Path(path) for path, name, *_ in sets if name == "text"]
    if not (paths and paths[0].is_file()):
        return []
    values = (value for _, value in read_keyed_lines(paths[0]).values())
    # OWSM's text begins with <eng><asr><notimestamps>
    marks = "<[^<>]*>" if is_s2t(config) else "$^"
    return [re.sub(marks, " ", value).split() for value in values]


def _ctc(asr_exp: PathLike, config: Mapping[str, Any]) -> Dict[str, torch.Tensor]:
    """Weights of the recogniser's CTC; empty where it has none that was trained."""
    model = config.get("model_conf") or {}
    if Path(asr_exp).suffix in (".yaml", ".yml") or not model.get("ctc_weight", 0.5):
        return {}
    return weights_of_recogniser(load_state(find_files(asr_exp, ASR_FILES)[1]))


def _prepare(mixture: Mixture, sentences: Sequence[Sequence[str]], options: MixtureOptions) -> None:
    """Choose the form in which each pretrained LM reads text."""
    # a form that is named in part does without sentences
    some = first_sentences(sentences) or (None if options.text_form == AUTO else ())
    if not mixture.prepare(some):
        names = ", ".join(c.name for c in mixture.components if c.scorer.reads_in_forms)
        raise InputError(
            f"{names}: no sentences that choose the form of the text",
            remedy="Give --text FILE, a sentence a line, or --text_form FORM.",
        )


def _look_ahead(
    ahead: LookAhead, asr_exp: PathLike, tokens: Sequence[str]
) -> Tuple[List[Dict[str, Any]], Dict[str, Any], Dict[str, PathLike]]:
    """Components of the look-ahead as `MixtureLM` has them, their weights, and files to copy."""
    if is_ngram(ahead.path):
        check_ngram(ahead.path, tokens, whose=asr_exp)
        name = f"{NGRAMS}/ahead_{Path(ahead.path).name}"
        part = {"name": "ahead", "kind": "ngram", "weight": 1.0, "path": str(ahead.path)}
        return [part], {}, {name: ahead.path}
    trained = load_lm(ahead.path)
    problem = token_difference(trained.token_list, tokens, whose=str(asr_exp))
    if problem:
        raise InputError(
            problem,
            path=trained.config,
            remedy="Train the look-ahead with the recogniser's tokens: bayeslm train --asr_exp.",
        )
    part, _ = mixture_part("ahead", 1.0, trained)
    if part["lm"] in UNTRAINED:
        raise InputError(
            f"the look-ahead is lm: {part['lm']}, and one LM or n-gram of the recogniser's tokens"
            " was expected",
            path=trained.config,
        )
    state = trained.model.state_dict()
    places = {key: f"lm.ahead.components.0.{key.removeprefix('lm.')}" for key in state}
    return [part], {places[key]: value for key, value in state.items()}, {}
