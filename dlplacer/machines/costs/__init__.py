"""Costs of ops, links and collectives: device table, roofline, calibration, algorithms, gradient codecs."""
