"""The modules of the data path as machine code: which, made how, and when they are used."""
