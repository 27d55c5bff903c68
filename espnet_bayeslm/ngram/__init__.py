"""Back-off n-grams: estimation, ARPA and KenLM files; they score words in `scoring`."""
