"""Checks that need CUDA: ``python -m benchmarks.gpu_check``."""
