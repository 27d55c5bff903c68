"""Back-off n-grams: modified Kneser-Ney estimation, ARPA files, scores through KenLM."""
