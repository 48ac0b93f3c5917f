"""The table of routes: no resource is forgotten in it, and no endpoint is there twice."""

import importlib
import pkgutil

from support.daemons.service import Service

import api


async def test_every_file_of_routes_is_in_the_table(service: Service) -> None:
    declared = {
        kind
        for module in pkgutil.walk_packages(api.__path__, "api.")
        for name, kind in vars(importlib.import_module(module.name)).items()
        if name.endswith("Routes")
        and isinstance(kind, type)
        and not kind.__module__.startswith("api.staff.")  # the staff has a server of its own
    }
    routes = service.daemon.http.routes
    assert {type(route.handler.__self__) for route in routes} == declared
    endpoints = [(route.method, route.path) for route in routes]
    assert len(set(endpoints)) == len(endpoints)
