"""Durations from data sheets: the device table and the roofline."""
