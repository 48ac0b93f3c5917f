"""Where the bytes of artifacts are: files of this machine, or objects in an S3 store."""
