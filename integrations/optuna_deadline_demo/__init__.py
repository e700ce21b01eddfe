"""The demo: a small convolutional network on scikit-learn's digits, tuned by a deadline."""
