"""The equations of the LMs in plain torch."""
