"""Causal LMs of `transformers` and adapters: loading, text forms, scoring; ours are in `lm`."""
