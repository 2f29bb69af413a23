"""What several sub-commands read from the command line."""
