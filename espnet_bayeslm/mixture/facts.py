"""Facts of a mixture without its LMs: names, weights, digests and forms of the text.

Workers tell it, and files of weights and scales keep it.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

import numpy as np

from espnet_bayeslm.pretrained.text_forms import TextForm
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG

Forms = Mapping[str, str]
"""Value of `--text_form` of each pretrained LM, by its name."""


class ComponentFacts(NamedTuple):
    """Facts of an LM or n-gram.

    Attributes:
        name: Its name among the components.
        weight: Its weight; of a subtracted LM at or below zero.
        fingerprint: Digest of its files; empty where it is not known.
        text_form: Form in which a pretrained LM reads text; empty for all others.
        kind: "lm", "ngram" or "mixture".
    """

    name: str
    weight: float = 1.0
    fingerprint: str = ""
    text_form: str = ""
    kind: str = "lm"


class MixtureFacts(NamedTuple):
    """Facts of a mixture.

    Attributes:
        components: The LMs and n-grams.
        subtracted: LMs and n-grams that are subtracted.
        kept: Option of a file -> forms of the text in the estimation that it tells of.
    """

    components: Sequence[ComponentFacts] = ()
    subtracted: Sequence[ComponentFacts] = ()
    kept: Mapping[str, Forms] = {}

    @property
    def names(self) -> List[str]:
        """Names of the components."""
        return [row.name for row in self.components]

    @property
    def weights(self) -> np.ndarray:
        """Weights of the components, (K,)."""
        return np.array([row.weight for row in self.components])

    @property
    def digests(self) -> Dict[str, str]:
        """Digests that are known, those of subtracted LMs too, by name."""
        rows = (*self.components, *self.subtracted)
        return {row.name: row.fingerprint for row in rows if row.fingerprint}

    @property
    def text_forms(self) -> Dict[str, str]:
        """Form in which each pretrained LM reads text, by name."""
        rows = (*self.components, *self.subtracted)
        return {row.name: row.text_form for row in rows if row.text_form}

    @property
    def signature(self) -> str:
        """All that word scores depend on, besides options and sentences."""
        weights = [row.weight for row in (*self.components, *self.subtracted)]
        return f"{self.digests} {self.text_forms} {weights}"

    def warn_of_other_forms(self) -> None:
        """Warn of each LM that reads text in another form than a file has kept."""
        for source, known in self.kept.items():
            for name, form in self.text_forms.items():
                if known.get(name, form) != form:
                    LOG.warning(
                        f"{name}: it reads text by --text_form {form}, and {source} was made with"
                        f" --text_form {known[name]}: leave out --text_form, or estimate {source}"
                        " again"
                    )


def checked_form(value: Any) -> str:
    """Form of the text that a file names, as `--text_form` has it; empty if it names none."""
    return str(TextForm.parse(value, "text_form")) if value else ""


def forms_for(known: Sequence[ComponentFacts], digests: Mapping[str, str]) -> Forms:
    """Forms of the text that belong to components whose digests are given, by name.

    A form belongs to the component of the same files, else to the one of its name.
    """
    by_digest = {row.fingerprint: row.text_form for row in known if row.fingerprint}
    by_name = {row.name: row.text_form for row in known}
    found = {n: by_digest.get(digest) or by_name.get(n, "") for n, digest in digests.items()}
    return {name: form for name, form in found.items() if form}


def match_weights(
    known: Sequence[ComponentFacts], names: Sequence[str], fingerprints: Sequence[str] = ()
) -> List[float]:
    """Weights in the order of some components.

    A weight belongs to the component of the same files (of an equal fingerprint), else to the only
    one of its name.
    """
    rest = list(known)
    weight_of: Dict[int, float] = {}
    for index, fingerprint in enumerate(fingerprints):
        same = next((row for row in rest if fingerprint and row.fingerprint == fingerprint), None)
        if same is not None:
            weight_of[index] = same.weight
            rest.remove(same)
    # without the numbers of equal names
    missing = {n: re.sub(r"#\d+$", "", name) for n, name in enumerate(names) if n not in weight_of}
    rows = {re.sub(r"#\d+$", "", row.name): row for row in rest}
    if len(rest) != len(missing) or set(rows) != set(missing.values()):
        raise InputError(
            f"has weights for {', '.join(row.name for row in known)}, but the components are"
            f" {', '.join(names)}",
            remedy="Give the --lm and --ngram with which the weights were estimated.",
        )
    if len(rows) < len(rest):
        twice = Counter(missing.values()).most_common(1)[0][0]
        raise InputError(
            f"several components are named {twice}, and their files do not tell which weight"
            " is whose",
            remedy="Estimate the weights again, or give them as W,W,... in the order of the"
            " components.",
        )
    for index, name in missing.items():
        weight_of[index] = rows[name].weight
        if rows[name].fingerprint and any(fingerprints):
            LOG.warning(f"{name}: its weight was estimated with another file of this name")
    return [weight_of[index] for index in range(len(names))]
