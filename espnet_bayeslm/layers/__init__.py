"""The equations of layers in plain torch, their weights and kernels; noise comes from `bayes`."""
