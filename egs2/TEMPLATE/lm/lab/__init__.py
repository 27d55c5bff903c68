"""Experiments: from a plan in yaml to trained LMs, weights, perplexities, lists and tables."""
