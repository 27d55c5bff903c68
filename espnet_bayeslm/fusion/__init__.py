"""LMs with other tokens in ESPnet's beam search; the search of CTC logits is in `recognition`."""
