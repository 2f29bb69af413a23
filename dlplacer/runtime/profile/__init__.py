"""Ops and links timed on the devices where they will run, under the conditions in which they will run."""
