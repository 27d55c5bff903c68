"""Back-off n-grams: modified Kneser-Ney estimation, ARPA files, scores through KenLM.

text -> counts -> discounts -> estimate -> arpa; `query` scores sentences with the result.
"""
