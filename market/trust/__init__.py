"""Trust in devices: their reputation, and checks by jobs with known answers."""
