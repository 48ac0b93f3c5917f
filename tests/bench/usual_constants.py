"""Constants about the service that is written the usual way."""

KEY = "k" * 40
USER = "11111111-1111-7111-8111-111111111111"
WORKER_TOKEN = "worker-token"
