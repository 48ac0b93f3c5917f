"""All that this process asks of other services: mail servers, a language model."""
