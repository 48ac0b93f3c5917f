"""Recovery of accounts: new passwords, and the end of everything that stolen keys have made."""
