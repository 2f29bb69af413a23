"""Formulas of the papers that serve to reproduce their numbers and that no command of dlplacer needs."""
