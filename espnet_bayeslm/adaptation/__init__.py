"""The steps of `bayeslm adapt` and its choice of a system; other tools train and rescore for it."""
