"""The command line: one short module per sub-command. Heavy imports wait until a command runs."""
