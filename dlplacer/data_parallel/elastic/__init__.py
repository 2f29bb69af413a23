"""Elastic averaging (EASGD; You, Buluç, Demmel 2017): updates, stability, and the time of its variants."""
