"""N-best lists from recordings, by recognisers that are installed: `bayeslm nbest`."""
