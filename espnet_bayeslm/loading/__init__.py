"""A trained LM from its folder: files, tokens and checkpoint; components, mixtures and exports."""
