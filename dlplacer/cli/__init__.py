"""The command line: every sub-command offers a public function. Heavy imports wait until a command runs."""
