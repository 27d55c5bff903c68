"""`bayeslm snr`: signal-to-noise ratio of an LM's random weights, and pruning by it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from espnet_bayeslm.bin.perplexity import KEYED
from espnet_bayeslm.evaluation.signal_to_noise import (
    PruningStep,
    prune_weights,
    summarize,
    summarize_weights,
)
from espnet_bayeslm.loading.component_options import GROUP, ComponentOptions, ngpu_option
from espnet_bayeslm.mixture.word_mixture import Mixture
from espnet_bayeslm.pretrained.names import is_adapted, is_pretrained
from espnet_bayeslm.report.weight_noise import LocationRow, location_table, pruning_table, write_snr
from espnet_bayeslm.scoring import MAX_TOKENS
from espnet_bayeslm.scoring.perplexity import Sentences, read_sentences, text_perplexities
from espnet_bayeslm.scoring.word_scores import Component
from espnet_bayeslm.utils.cli import Tool, device_of, parse_numbers
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import ToolOptions, option

STEPS = "0,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,0.95"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SnrOptions(ToolOptions):
    """Options of `bayeslm snr`."""

    ngpu: int = ngpu_option()
    lms: Sequence[Any] = option(
        "An LM with `uncertainty`: its experiment folder or checkpoint (repeatable)",
        (),
        name="lm",
        group=GROUP,
    )
    max_tokens: int = option(
        "Largest number of tokens in a batch", MAX_TOKENS, group=GROUP, least=1
    )
    max_oov_rate: float = option(
        "Largest share of unknown words; more are an error", 0.2, group=GROUP, least=0
    )
    text: Optional[str] = option(
        "A text, one sentence per line: for --prune, latent variables", None
    )
    keyed: bool = option(KEYED, False)
    prune: bool = option("Measure the text with ever more random weights set to zero", False)
    prune_steps: str = option("Shares of the weights, from 0 to 1 with commas", STEPS)
    output: Optional[str] = option("A folder for snr.json, snr.png, prune.json, prune.png", None)


def load_uncertain(options: SnrOptions) -> Sequence[Component]:
    """LMs, each with something that is random."""
    # with it comes torch, which the help needs not
    from espnet_bayeslm.lm import UncertainLM

    if not options.lms:
        raise InputError("no LM", remedy="Give --lm EXP, repeatable.")
    for lm in options.lms:
        if is_pretrained(lm) or is_adapted(lm):
            raise InputError(
                "a pretrained LM or an adapter, where an LM of this package was expected",
                path=lm,
                remedy="Give an LM that was trained with `uncertainty`, not from a pretrained LM.",
            )
    of_lms = ComponentOptions(lms=options.lms, max_tokens=options.max_tokens)
    components = Mixture.load(of_lms, device_of(options.ngpu)).components
    for component in components:
        model = trained_lm(component).lm
        if not (isinstance(model, UncertainLM) and [*model.posterior.blocks(), *model.latents()]):
            raise InputError(
                f"{component.name} is a point-estimate LM: its weights have no noise",
                path=trained_lm(component).path,
                remedy="Give an LM that was trained with `uncertainty`.",
            )
    return components


def trained_lm(component: Component) -> Any:
    """A component's LM with its tokenizer."""
    return component.scorer.lm  # type: ignore[attr-defined]


def location_rows(
    component: Component, sentences: Optional[Sentences], *, max_tokens: int
) -> List[LocationRow]:
    """Locations of an LM: those with random weights, then its latent variables."""
    from espnet_bayeslm.scoring.uncertainty import latent_moments

    model = trained_lm(component).lm
    blocks = summarize_weights(model.posterior.blocks())
    rows = [LocationRow(block.location, "weights", block) for block in blocks]
    latents: Dict[str, Any] = dict.fromkeys(location for location, _ in model.latents())
    if sentences is not None and latents:
        texts = list(sentences.values())
        moments = latent_moments(trained_lm(component), texts, max_tokens=max_tokens)
        latents = {name: summarize(name, values) for name, values in moments.items()}
    return rows + [LocationRow(name, "latent", found) for name, found in latents.items()]


def snr(options: SnrOptions) -> None:
    """Print signal-to-noise ratios, and what pruning by them does to a text."""
    if options.prune and options.text is None:
        raise InputError("--prune true without a text", remedy="Give --text FILE to measure on.")
    shares: List[float] = []
    if options.prune:
        shares = sorted(parse_numbers("--prune_steps", options.prune_steps, float, most=1))
    sentences = None
    if options.text is not None:
        sentences = read_sentences(options.text, keyed=options.keyed)
    components = load_uncertain(options)
    limit = options.max_tokens
    rows = {c.name: location_rows(c, sentences, max_tokens=limit) for c in components}
    steps: Dict[str, List[PruningStep]] = {}
    if sentences is not None and options.prune:
        steps = {c.name: prune_component(c, shares, sentences, options) for c in components}
    if options.output is not None:
        write_snr(Path(options.output), rows, steps, text=options.text)
    print(location_table(rows).text())
    for name, values in steps.items():
        table = pruning_table(name, values)
        print(f"\n{table.caption}\n{table.text()}")


def prune_component(
    component: Component, shares: Sequence[float], sentences: Sentences, options: SnrOptions
) -> List[PruningStep]:
    """Figures of a text with ever more of an LM's random weights at zero."""
    posteriors = trained_lm(component).lm.posterior.blocks()
    if not posteriors:
        raise InputError(
            f"{component.name} has latent variables only, and no random weights to prune",
            remedy="Leave out --prune true for this LM.",
        )

    # pruning does not change which words are unknown: they are counted, and told, once
    lines = list(sentences.values())
    alone = Mixture([component], max_oov_rate=options.max_oov_rate)
    scores = alone.each(lines, checked=True)
    if not options.keyed:
        alone.check_no_ids(lines, scores)
    kinds, tokens = alone.components, alone.token_counts_of_each(lines)

    def measure() -> Dict[str, Any]:
        return text_perplexities(kinds, lines, alone.each(lines), tokens)[0].summary()

    LOG.info(f"Pruning {component.name}: the text is scored {2 * len(shares)} times")
    return prune_weights(posteriors, shares, measure)


TOOL = Tool(
    "snr",
    "Signal-to-noise ratio |mean| / std of random weights, and pruning",
    snr,
    SnrOptions,
    signed="output",
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
