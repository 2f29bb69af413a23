"""Elastic averaging: workers and a centre that pull each other, synchronously or one worker after the other."""
