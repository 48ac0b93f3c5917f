"""Formats and rules that devices and the daemon must share exactly. Pure: no I/O, no clock."""
