"""Lists from recordings or CTC logits; LMs in ESPnet's own beam search are in `fusion`."""
