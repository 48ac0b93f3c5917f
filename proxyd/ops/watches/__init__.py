"""Watches of the service: reasons for alerts, the disks, the page of the status."""
