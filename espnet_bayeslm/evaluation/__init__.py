"""Word errors, perplexity, and the word scores that LMs share."""
