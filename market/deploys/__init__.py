"""Deploys: replicas, rollouts and templates, and the apps that run in them."""
