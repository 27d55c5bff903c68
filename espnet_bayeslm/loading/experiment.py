"""The files of a trained LM: which they are, its configuration, tokens and weights.

Neither ESPnet nor torch is imported before it is needed, since that takes seconds.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import itertools
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.pretrained.names import PRETRAINED_TYPES, source_type
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines, read_yaml_mapping, sha256
from espnet_bayeslm.utils.imports import quiet_imports

if TYPE_CHECKING:
    import torch

# Keys that define an LM and its tokens.
NEEDED = ("lm", "lm_conf", "token_list", "token_type")
# Other keys that are read of a trained LM's configuration: ESPnet's defaults.
DEFAULTS: Dict[str, Any] = {
    **{"model": "lm", "model_conf": {}, "use_preprocessor": True, "bpemodel": None},
    **{"init": None, "optim": None},
}
NGRAMS = {".arpa", ".binary", ".klm"}
# What the training text says of unknown words, in an experiment's folder.
UNKNOWN_WORDS = Path("data") / "unknown_words.yaml"
SPECIAL_TOKENS = ("<blank>", "<unk>", "<sos/eos>")
# Tokenizers of ESPnet's Whisper, which need the package whisper.
WHISPER_TYPES = ("whisper_en", "whisper_multilingual")
# How many differences of token lists a message shows.
SHOWN = 5
# In the order of ESPnet's own preference.
MODEL_FILES = ("valid.loss.ave.pth", "valid.loss.best.pth", "latest.pth")
# What belongs to one run: where its data and outputs are, what it starts from, on what it runs.
RUN_OPTIONS = (
    *("config", "output_dir", "seed", "ngpu", "num_workers", "log_level", "log_interval"),
    *("print_config", "dry_run", "collect_stats", "resume", "init_param", "ignore_init_mismatch"),
    *("token_list", "token_type", "bpemodel", "train_shape_file", "valid_shape_file"),
    *("train_data_path_and_name_and_type", "valid_data_path_and_name_and_type"),
    *("use_matplotlib", "use_tensorboard", "multiprocessing_distributed"),
)
# The order in which conf/*.yaml have them.
FIRST_OPTIONS = (
    *("lm", "lm_conf", "model", "model_conf", "optim", "optim_conf"),
    *("scheduler", "scheduler_conf", "batch_type", "batch_size", "max_epoch", "patience"),
)

# Classes that ESPnet's reporter leaves in `checkpoint.pth` beside plain values.
REPORTER_TYPES: List[Any] = [
    *(np.float64(0).__reduce__()[0], np.dtype, datetime.timedelta),
    *(type(np.dtype(number)) for number in (np.float64, np.float32, np.int64)),
]


def find_files(path: PathLike, names: Sequence[str] = MODEL_FILES) -> Tuple[Path, Path]:
    """(configuration, checkpoint) of a checkpoint, or of a folder that has one of `names`."""
    if source_type(path) in PRETRAINED_TYPES:
        raise other_tokens_error(path)
    path = Path(path)
    if path.is_file() and set(path.suffixes) & NGRAMS:
        raise InputError(
            "an n-gram, where an experiment folder or a checkpoint was expected",
            path=path,
            remedy="Give it by --ngram.",
        )
    folder = path if path.is_dir() else path.parent
    candidates = [folder / name for name in names] if path.is_dir() else [path]
    for file in candidates:
        if file.is_symlink() and not file.exists():
            raise InputError(
                f"leads to {file.readlink()}, which is not there",
                path=file,
                remedy="Run the training again: it goes on where it was stopped.",
            )
    existing = [file for file in candidates if file.is_file()]
    if not existing:
        expected = " or ".join(names) if path.is_dir() else "such file"
        raise InputError(f"found no {expected}", path=path, remedy="Train it first.")
    config = folder / "config.yaml"
    if not config.is_file():
        raise InputError(
            "found no config.yaml beside the checkpoint",
            path=folder,
            remedy="Copy it from the folder of the training.",
        )
    return config, existing[0]


def other_tokens_error(path: PathLike) -> InputError:
    """Error of a pretrained LM where an LM for ESPnet's searches was expected."""
    return InputError(
        "a pretrained LM, whose tokens differ from the recogniser's, where an LM of ESPnet was"
        " expected",
        path=str(path),
        remedy="Write it for the search (bayeslm export --format fusion), or rescore N-best lists"
        " with it (bayeslm rescore --lm).",
    )


def check_exp(exp: Path, signs: str) -> None:
    """Raise an InputError where a folder's path has a sign that ends a path in ESPnet's options."""
    for sign in signs:
        # `,` as the path is given, `:` in that of a checkpoint to start from, which is whole
        if sign in str(exp.resolve() if sign == ":" else exp):
            raise InputError(
                f"--exp with a `{sign}`, which ends a path in ESPnet's options",
                path=exp,
                remedy="Give another name.",
            )


def config_of(exp: PathLike) -> Path:
    """The config.yaml of an experiment: its folder, a file beside it, or itself."""
    path = Path(exp)
    if path.suffix in (".yaml", ".yml"):
        return path
    return (path.parent if path.is_file() else path) / "config.yaml"


def read_config(path: Path) -> argparse.Namespace:
    """Arguments of an LM training run; the keys of `DEFAULTS` may be missing."""
    config = read_yaml_mapping(path)
    needed = (*NEEDED, *(["bpemodel"] if config.get("token_type") == "bpe" else []))
    missing = [key for key in needed if key not in config]
    if missing:
        raise InputError(
            f"expected the config.yaml of an LM training run; {', '.join(missing)} not in it",
            path=path,
        )
    args = argparse.Namespace(**{**DEFAULTS, **config})
    if args.token_type == "bpe":
        args.bpemodel = str(find_bpemodel(args.bpemodel, path) or args.bpemodel)
    return args


def find_bpemodel(model: PathLike, config: Path) -> Optional[Path]:
    """The word-piece model that a config.yaml names; None where it is not there.

    The experiment's own comes first, since it may have been moved, and another have taken its
    place; else the path may be relative to the folder of the training, some levels above.
    """
    places = [config.parent / folder / Path(model).name for folder in ("data", "")]
    places += [Path(model), *(place / model for place in config.absolute().parents)]
    return next((place for place in places if place.is_file()), None)


def trained_tokens(config: Path) -> Tuple[str, List[str], Optional[Path]]:
    """Type, tokens and BPE model of an LM or recogniser that ESPnet has trained."""
    content = read_yaml_mapping(config)
    tokens, token_type = content.get("token_list"), content.get("token_type")
    if not isinstance(tokens, list) or token_type not in ("word", "char", "bpe", *WHISPER_TYPES):
        raise InputError(
            f"no token list of words, characters or word pieces in it (token_type: {token_type})",
            path=config,
            remedy="Give the experiment of an ESPnet recogniser or LM; `bayeslm train` also takes"
            " --token_list and --bpemodel.",
        )
    tokens = list(map(str, tokens))  # a list written by hand may have numbers
    if token_type != "bpe":
        return token_type, tokens, None
    model = find_bpemodel(str(content.get("bpemodel")), config)
    if model is None:
        raise InputError(
            f"its BPE model {content.get('bpemodel')} is not there",
            path=config,
            remedy="Put it where config.yaml has it (bpemodel), or beside config.yaml.",
        )
    return token_type, tokens, model


def check_token_list(tokens: Sequence[str], *, path: str) -> None:
    """Check that a token list has the three special tokens where ESPnet expects them."""
    remedy = (
        "Write it with espnet2.bin.tokenize_text --write_vocabulary true"
        " --add_symbol '<blank>:0' --add_symbol '<unk>:1' --add_symbol '<sos/eos>:-1'."
    )
    for token in SPECIAL_TOKENS:
        if token not in tokens:
            raise InputError(f"the token list lacks {token}", path=path, remedy=remedy)
    if tokens[0] != "<blank>" or tokens[-1] != "<sos/eos>":
        raise InputError(
            f"expected <blank> first and <sos/eos> last, got {tokens[0]} and {tokens[-1]}",
            path=path,
            remedy=remedy,
        )
    seen: Dict[str, int] = {}
    for number, token in enumerate(tokens, 1):
        if seen.setdefault(token, number) != number:
            raise InputError(
                f"the token {token!r} stands already in line {seen[token]}",
                path=path,
                line=number,
                remedy="Each token must come once.",
            )


def is_s2t(config: Mapping[str, Any]) -> bool:
    """True for the configuration of a model of ESPnet's task s2t, such as OWSM."""
    return config.get("preprocessor") == "s2t"


def special_ids(
    config: Mapping[str, Any], tokens: Sequence[str], *, path: str
) -> Dict[str, Optional[int]]:
    """Ids of `blank`, `sos` and `eos` of a recogniser, checked; empty where they are ESPnet's.

    OWSM has its own tokens, and `model_conf` may name others, as for ESPnet's Whisper.

    Args:
        config: The configuration.
        tokens: Its tokens.
        path: Its path.
    """
    usual = {"blank": SPECIAL_TOKENS[0], "sos": SPECIAL_TOKENS[2], "eos": SPECIAL_TOKENS[2]}
    own = {"sos": "<sos>", "eos": "<eos>"} if is_s2t(config) else {}
    given = config.get("model_conf") or {}
    symbols = {name: given.get(f"sym_{name}", token) for name, token in {**usual, **own}.items()}
    if symbols == usual:
        check_token_list(tokens, path=path)
        return {}
    place = {token: number for number, token in enumerate(tokens)}
    ids = {name: place.get(symbol) for name, symbol in symbols.items()}
    lacking = [name for name in ("sos", "eos") if ids[name] is None]
    if lacking:
        raise InputError(
            f"the token list lacks {symbols[lacking[0]]}, its sym_{lacking[0]}",
            path=path,
            remedy="Give the configuration with which the recogniser was trained.",
        )
    return ids


def token_difference(tokens: Sequence[str], others: Sequence[str], *, whose: str) -> str:
    """Description of the differences between two token lists; "" if there are none."""
    pairs = list(itertools.zip_longest(tokens, others))
    named = [tuple("none" if token is None else repr(token) for token in pair) for pair in pairs]
    differing = [f"{n} is {a} and {b}" for n, (a, b) in enumerate(named) if a != b]
    if not differing:
        return ""
    rest = len(differing) - SHOWN
    only = [len(set(x).difference(y)) for x, y in ((tokens, others), (others, tokens))]
    sets = f"{only[0]} tokens are only this LM's, {only[1]} only the other's"
    return (
        f"{len(differing)} of {len(pairs)} ids stand for other tokens in this LM than in {whose}:"
        f" {', '.join(differing[:SHOWN])}{f', and {rest} more' if rest > 0 else ''}"
        f" ({sets if any(only) else 'the same tokens in another order'})"
    )


def check_same_tokens(config: PathLike, other: PathLike, *, remedy: str) -> None:
    """Check that an LM's config.yaml has the tokens of another config.yaml, if both can be read."""
    ours, theirs = map(_tokens_of, (config, other))
    if ours is not None and theirs is not None and ours != theirs:
        problem = token_difference(ours, theirs, whose=str(other))
        raise InputError(problem, path=config, remedy=remedy)


def _tokens_of(config: PathLike) -> Optional[List[str]]:
    """Tokens of a config.yaml in the order of their ids; None where none can be read."""
    try:
        tokens: Any = read_yaml_mapping(config).get("token_list")
        if isinstance(tokens, str):
            tokens = [line for _, line in read_lines(tokens)]
    except ValueError:  # an InputError, or of yaml itself, as for a date that is none
        return None
    return list(map(str, tokens)) if isinstance(tokens, list) else None


def read_checkpoint(path: Any) -> Any:
    """Content of a checkpoint, read with `weights_only=True`."""
    import torch

    from espnet_bayeslm.pretrained.loaded_weights import find_pointer, pointer_error

    if Path(path).is_dir():
        remedy = "Give a checkpoint in it, such as valid.loss.ave.pth."
        raise InputError("a folder, where a checkpoint was expected", path=path, remedy=remedy)
    try:
        with torch.serialization.safe_globals(REPORTER_TYPES):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes may end in any
        if find_pointer(Path(path)):
            raise pointer_error(Path(path)) from error
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise InputError(
            f"cannot be read as a checkpoint ({reason})",
            path=path,
            remedy="Restore the file, or delete it and train again.",
        ) from error


def load_state(path: Any) -> Dict[str, torch.Tensor]:
    """The model's state_dict in a checkpoint, `Nepoch.pth` or `checkpoint.pth`."""
    import torch

    state = read_checkpoint(path)
    if isinstance(state, dict) and isinstance(state.get("model"), Mapping):
        state = state["model"]
    if not isinstance(state, Mapping) or not all(
        isinstance(key, str) and torch.is_tensor(value) and value.layout == torch.strided
        for key, value in state.items()
    ):
        raise InputError(
            "expected a dictionary of tensors",
            path=path,
            remedy="Give a model file that ESPnet's training wrote.",
        )
    return dict(state)


def fingerprint(config: Path, checkpoint: Path, args: argparse.Namespace) -> str:
    """Digest of all files that loading a trained LM reads; `args` are its configuration."""
    parts = (args.lm_conf or {}).get("components") or []
    named = [part.get("path") for part in parts if isinstance(part, dict)]
    named += [getattr(args, name, None) for name in ("bpemodel", "non_linguistic_symbols")]
    named.append(config.parent / UNKNOWN_WORDS)
    files: List[PathLike] = [config, checkpoint]
    files += [str(file) for file in named if file and isfile(file)]
    return hashlib.sha256(" ".join(map(sha256, files)).encode()).hexdigest()


def read_unk_size(folder: Path) -> Optional[float]:
    """Number of words of `<unk>`, as `bayeslm train` has counted; None where it has not."""
    path = folder / UNKNOWN_WORDS
    if not path.is_file():
        return None
    try:
        return float(read_yaml_mapping(path)["unk_size"])
    except (TypeError, KeyError, ValueError) as error:
        raise InputError(
            f"no number `unk_size` ({error!r})",
            path=path,
            remedy="Delete the file, or train again.",
        ) from error


def training_config(config: argparse.Namespace) -> Dict[str, Any]:
    """Options that differ from ESPnet's defaults, as in conf/*.yaml, but those of one run."""
    with quiet_imports():
        from espnet2.tasks.lm import LMTask  # takes seconds
    defaults = vars(LMTask.get_parser().parse_args([]))
    given = {
        name: value
        for name, value in vars(config).items()
        if name in defaults and name not in RUN_OPTIONS and _lists(value) != _lists(defaults[name])
    }
    return {**{name: given[name] for name in FIRST_OPTIONS if name in given}, **given}


def _lists(value: Any) -> Any:
    """Value with lists for tuples, as yaml has it."""
    return [*map(_lists, value)] if isinstance(value, (list, tuple)) else value
