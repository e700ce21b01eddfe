"""What needs CUDA and no other test can see: ``python -m benchmarks.gpu_check``."""
