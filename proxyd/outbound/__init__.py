"""Requests of this process to other services: mail servers, a model, an S3 store, webhooks."""
