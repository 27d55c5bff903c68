"""A mixture inside a search: ESPnet's, or our own over CTC logits; it recognises no audio."""
