"""The choice of an exit: the directory of exits, their places, labels and countries."""
