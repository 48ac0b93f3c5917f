"""What devices and the daemon must say and judge exactly alike. Pure: no I/O, no clock."""
