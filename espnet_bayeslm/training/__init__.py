"""Training by ESPnet's trainer: texts, options, checkpoints that survive kills; LMs are in `lm`."""
