"""Where long work is done, and blocks of it."""
