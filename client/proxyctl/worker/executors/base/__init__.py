"""The interface of executors, and the processes and devices that every one of them uses."""
