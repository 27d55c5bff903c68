"""Blocks of work, done here, in processes or by Dask; the work itself is its callers'."""
