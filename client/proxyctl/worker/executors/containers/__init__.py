"""Containers: docker, podman and gVisor."""
