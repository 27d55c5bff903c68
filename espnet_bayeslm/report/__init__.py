"""What is shown of results: figures."""
