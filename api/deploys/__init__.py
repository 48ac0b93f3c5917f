"""Routes of deploys and apps."""
