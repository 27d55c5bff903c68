"""The equations of LMs in plain torch, with their kernels; random weights come from `bayes`."""
