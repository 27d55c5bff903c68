"""LMs and n-grams with their weights, as one scorer of words, here or on workers; no search."""
