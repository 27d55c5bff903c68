"""Training by ESPnet's trainer, from text to an experiment; the LMs themselves are in `lm`."""
