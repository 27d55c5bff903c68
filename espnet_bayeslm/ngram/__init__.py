"""Back-off n-grams: modified Kneser-Ney estimation, ARPA files, scores through KenLM.

`text` -> `kneser_ney` -> `build` (or lmplz); `query` scores sentences with the result.
"""
