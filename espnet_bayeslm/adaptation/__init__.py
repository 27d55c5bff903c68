"""`bayeslm adapt`: lists with references to an adapted LM with all that rescoring needs."""
