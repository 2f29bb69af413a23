"""A module that runs a plan: its variants by input shape, its checks for changes, its gradients."""
