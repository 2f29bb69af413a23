"""The module that runs a plan: its variants by input shape, its guards, its gradients."""
