"""Jobs in a Kubernetes cluster."""
