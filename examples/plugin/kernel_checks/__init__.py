"""Checks of single kernels."""
