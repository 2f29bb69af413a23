"""Whether a plan can exist: sizes, simple reasons why not, and explanations of what a proof found."""
