"""Words of any LM in the first pass: a beam search over a recogniser's tokens."""
