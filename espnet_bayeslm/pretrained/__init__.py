"""Pretrained causal LMs of `transformers` as components: loading, text forms, scoring."""
