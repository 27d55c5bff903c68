"""LMs as ONNX graphs, at the posterior mean."""

from espnet_bayeslm.training.onnx.files import export_onnx

__all__ = ["export_onnx"]
