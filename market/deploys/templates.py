"""Template of a deploy's replicas, which becomes the payload of a job."""

import dataclasses
import shlex
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from market.base.errors import Code, MarketError
from market.jobs.specs import NewSpec, Spec, understand
from proxyctl.protocol.jobspec import Payload, Port, Ready, Resources

HOUR_SECONDS = 3_600
OTHER_GPUS = "resources: The GPUs are the deploy's gpu_count and gpu_model, and stay as they are."
JOB_TYPES = {
    "Docker": "docker",
    "Jupyter": "docker",
    "Inference": "inference",
    "Training": "training",
    "Script": "script",
}
_OF_PAYLOAD = "payload."


Interpreter = Literal["python3", "bash"]


class Template(Struct, frozen=True):
    """Work of a replica, and its needs beside its GPUs.

    `command` has the notation of a shell, but a shell does not run it. Only the buyer and the
    devices that run a replica see the template, and only these devices see the values of `secrets`.
    `min_reputation` is the least reputation of a device, in millionths.
    """

    image: str = ""
    command: str = ""
    script: str = ""
    interpreter: Interpreter = "python3"
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    ports: tuple[Port, ...] = ()
    ready: Ready | None = None
    network: str = "none"
    resources: Resources = Resources()
    min_reputation: int = 0

    def as_json(self) -> str:
        """Return the template as JSON to store: without the values of its secrets."""
        return msgspec.json.encode(replace(self, secrets=dict.fromkeys(self.secrets, ""))).decode()


# Ports of the default images, by the type of the deploy; see the settings `market.jupyter_image`
# and `inference_image`. A notebook requires no token: its visitor has shown the key of the app
# before.
OF_DEFAULT_IMAGES = {
    "Jupyter": Template(
        env={
            "NOTEBOOK_ARGS": (
                "--ServerApp.token= --ServerApp.password= --ServerApp.allow_remote_access=True"
            )
        },
        ports=(Port("notebook", 8888),),
        ready=Ready(8888),
    ),
    "Inference": Template(ports=(Port("api", 8000),), ready=Ready(8000, "/health")),
}

# A deploy of these types needs no template. An inference server needs a model, which only its buyer
# knows.
WHOLE_BY_DEFAULT = frozenset(("Jupyter",))


def completed(template: Template, deploy_type: str, default_image: str) -> Template:
    """Return a template with the default image of a deploy's type, if it has nothing to run.

    The ports of that image are also declared, unless the template has a command or ports.
    """
    if template.image or template.script:
        return template
    template = replace(template, image=default_image)
    usual = OF_DEFAULT_IMAGES.get(deploy_type)
    if usual is None or not default_image or template.command or template.ports:
        return template
    return replace(
        template,
        env={**usual.env, **template.env},
        ports=usual.ports,
        ready=template.ready or usual.ready,
    )


class Change(Struct, frozen=True):
    """Changes in the next revision; None stays as it is, and so does an unset `ready`."""

    image: str | None = None
    command: str | None = None
    script: str | None = None
    interpreter: Interpreter | None = None
    env: dict[str, str] | None = None
    secrets: dict[str, str] | None = None
    ports: tuple[Port, ...] | None = None
    ready: Ready | UnsetType | None = UNSET  # None takes it away
    network: str | None = None
    resources: Resources | None = None
    min_reputation: int | None = None

    def of(self, template: Template) -> Template:
        """Return a template with the change; the list of GPUs belongs to the deploy, and stays.

        Raises:
            MarketError: `payload_invalid`, of a command beside a script, or other GPUs.
        """
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        ready = fields.pop("ready")
        said = {name: value for name, value in fields.items() if value is not None}
        for name, other in (("command", "script"), ("script", "command")):
            if said.get(name) and getattr(template, other) and other not in said:
                message = f'{name}: There is a {other} already; say "{other}": "" as well.'
                raise MarketError(Code.PAYLOAD_INVALID, message, field=name)
        if ready is not UNSET:
            said["ready"] = ready
        if self.resources is not None:
            before = template.resources
            if self.resources.gpus not in (0, before.gpus):
                raise MarketError(Code.PAYLOAD_INVALID, OTHER_GPUS, field="resources.gpus")
            if self.resources.gpu_model not in ("", before.gpu_model):
                raise MarketError(Code.PAYLOAD_INVALID, OTHER_GPUS, field="resources.gpu_model")
            said["resources"] = dataclasses.replace(
                self.resources, gpus=before.gpus, gpu_model=before.gpu_model
            )
        return replace(template, **said)


def template_of(stored: str) -> Template:
    """Return the template that `as_json` stored, without the values of its secrets."""
    return msgspec.json.decode(stored, type=Template)


def job_type_of(deploy_type: str, template: Template) -> str:
    """Return the type of a replica's job: an image that runs by itself is a docker job."""
    if template.image and not template.command:
        return "docker"
    return JOB_TYPES[deploy_type]


def spec_of(template: Template, deploy_type: str, seconds: int) -> Spec:
    """Return the specification of a replica's job that is paid for `seconds`.

    Raises:
        MarketError: `payload_invalid`, naming the field of the template.
    """
    if not template.image and job_type_of(deploy_type, template) == "docker":
        message = f"image: A deploy of the type {deploy_type} needs one; a Script does not."
        raise MarketError(Code.PAYLOAD_INVALID, message, field="image")
    try:
        command = tuple(shlex.split(template.command))
    except ValueError:  # a quote without its end
        message = "command: A quotation mark, or the character after a \\, is missing."
        raise MarketError(Code.PAYLOAD_INVALID, message, field="command") from None
    payload = Payload(
        image=template.image,
        command=command,
        script=template.script,
        interpreter=template.interpreter,
        env=template.env,
        secrets=template.secrets,
        ports=template.ports,
        ready=template.ready,
        network="egress" if template.network == "egress" else "none",
        restart="on_failure",
    )
    try:
        spec = understand(
            NewSpec(payload, template.resources, min_reputation=template.min_reputation),
            job_type=job_type_of(deploy_type, template),
            duration_hrs=-(-seconds // HOUR_SECONDS),
            text="",
        )
    except MarketError as error:
        field = (error.field or "").removeprefix(_OF_PAYLOAD)
        message = (error.message or "").removeprefix(_OF_PAYLOAD)
        raise MarketError(error.code, message, field=field) from error
    return replace(spec, timeout_seconds=seconds)
