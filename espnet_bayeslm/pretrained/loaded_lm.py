"""A causal LM of `transformers` with its tokenizer, as loading gives it to scoring and training."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, ContextManager, List, Optional

from espnet_bayeslm.pretrained.names import other_options
from espnet_bayeslm.pretrained.text_forms import AUTO, Reader


@dataclasses.dataclass(frozen=True)
class CausalLM:
    """A causal LM of `transformers` with its own tokenizer.

    Attributes:
        name: Its name in tables.
        model: A model of `transformers` in evaluation mode, or a peft model around one.
        tokenizer: Its tokenizer, with offsets.
        fingerprint: Digest of its weights, configuration and tokenizer.
        licence: Licence that its card names; empty if the card names none.
        sampled: (index) -> context that holds a sample of its random weights; None: there are none.
        text_form: Form in which it reads text, `FORM[,MARKS[,BLANK]]` (`text_forms.TextForm`), or
            `auto`: the form with the lowest perplexity on the first sentences that are scored.
        reader: Writes sentences in the form that an adapter was trained with; None: the form is
            chosen by `text_form`.
    """

    name: str
    model: Any
    tokenizer: Any
    fingerprint: str
    licence: str = ""
    sampled: Optional[Callable[[int], ContextManager[None]]] = None
    text_form: str = AUTO
    reader: Optional[Reader] = None

    @property
    def lm(self) -> Any:
        """The model of `transformers`."""
        return self.model

    @property
    def tokens(self) -> List[str]:
        """All tokens of its tokenizer; the index is the id."""
        found: List[str] = self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer)))
        return found

    def at_mean(self) -> CausalLM:
        """The LM at its posterior mean, an adapter added to the weights that it adapts.

        It is as fast as its base. The model is changed in place. An adapter with options beyond
        LoRA's, or on an embedding, which may be the output projection too, stays beside its base.
        """
        model, configs = self.model, getattr(self.model, "peft_config", {})
        ends = (model.get_input_embeddings(), model.get_output_embeddings())
        adapts_ends = any(hasattr(end, "base_layer") for end in ends)
        if configs and not adapts_ends and not any(map(other_options, configs.values())):
            model = model.merge_and_unload().eval()
        return dataclasses.replace(self, model=model, sampled=None)
