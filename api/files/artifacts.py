"""Routes of artifacts: files that jobs are given, and that they leave."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from api.http.errors import Transport
from api.http.identifiers import AttemptNumber, in_path
from api.routing.listing import Listed, Page, Timestamp, timestamp
from api.routing.routes import Auth, Call, Download, Nothing, Redirect, Reply, Route
from api.serving.bodies import RawBody
from market.accounts.scopes import Scope
from market.base.errors import Code
from market.files.artifacts import Announced, Artifacts, NewArtifact
from storage.devices.devices import DeviceRow
from storage.files.artifacts import ArtifactRow

# Size of the largest file if the operator has set no limit; any disk is smaller.
ANY_BYTES = 2**62
PARTS_MAX = 10_000  # of one upload, in any S3 store
NO_EXAMPLE = "0" * 64

Name = Annotated[str, Meta(min_length=1, max_length=1_024)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
FileBytes = Annotated[int, Meta(ge=0, le=ANY_BYTES)]
Etag = Annotated[str, Meta(max_length=256)]


class AnnounceRequest(Struct):
    """File to send: its name, its size in bytes, its SHA-256 in hexadecimal."""

    name: Name
    size_bytes: FileBytes
    sha256: Sha256


class AnnounceForJobRequest(Struct):
    """The same of a device, in which attempt, and whether it is a result or a checkpoint."""

    attempt: AttemptNumber
    name: Name
    size_bytes: FileBytes
    sha256: Sha256
    kind: Literal["output", "checkpoint"] = "output"


class FinishRequest(Struct):
    """Hash of the sent file, once more, and the `etags` of its parts, if it has parts."""

    sha256: Sha256 | None = None
    etags: Annotated[list[Etag], Meta(max_length=PARTS_MAX)] | None = None


class Request(Struct):
    """A request that brings a file, or a part of it: with these headers, as they are.

    A `url` that begins with a slash is a path of this API. It requires the caller's token, and the
    parameter `offset` to continue an upload. The other URLs work for an hour.
    """

    method: Literal["PUT"]
    url: str
    headers: dict[str, str]


class PartRequest(Request, kw_only=True):
    """A request that brings the part of a file that begins at `offset`."""

    offset: int
    size_bytes: int


class AnnounceReply(Reply, kw_only=True):
    """An artifact that was announced; without `upload` and `parts` nothing needs to be sent.

    `offset` is the number of bytes already received. With `parts`, each is sent by a request of its
    own.
    """

    artifact_id: str
    offset: int
    upload: Request | UnsetType = UNSET
    parts: list[PartRequest] | UnsetType = UNSET


class ReceiveQuery(Struct):
    """Place in the file where the body begins; later bytes received before are replaced."""

    offset: FileBytes = 0


class ReceiveReply(Reply, kw_only=True):
    """The received size of the file."""

    offset: int


class ArtifactItem(Struct, kw_only=True):
    """A file; one that is not whole is still being sent. `expires_at` is when it is deleted."""

    id: str
    kind: Literal["input", "output", "checkpoint"]
    name: str
    size_bytes: int
    sha256: str
    is_whole: bool
    created_at: Timestamp
    job_id: str | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    expires_at: Timestamp | UnsetType = UNSET


class ArtifactReply(Reply, kw_only=True):
    """One artifact."""

    artifact: ArtifactItem


class ArtifactsReply(Listed[ArtifactItem], kw_only=True):
    """Artifacts, newest first; `next_cursor` is there when there are more."""

    items: list[ArtifactItem] = field(name="artifacts")


class AddressReply(Reply, kw_only=True):
    """Address of an artifact's download: a path of this API, or a temporary one of an S3 store."""

    url: str


class ArtifactRoutes:
    """The routes of artifacts."""

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts
        self._most = artifacts.terms.file_bytes or ANY_BYTES

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [*self._buyers(), *self._workers()]

    def _buyers(self) -> list[Route]:
        missing = (Code.ARTIFACT_NOT_FOUND,)
        return [
            Route(
                "POST",
                "/api/artifacts",
                "Announce a file that jobs are given",
                self.announce,
                AnnounceReply,
                scope=Scope.JOBS_WRITE,
                body=AnnounceRequest,
                example={"name": "data.tar", "size_bytes": 10_240, "sha256": NO_EXAMPLE},
                errors=(
                    Code.ARTIFACT_TOO_LARGE,
                    Code.ARTIFACT_QUOTA_EXCEEDED,
                    Code.ACCOUNT_CLOSED,
                ),
                unavailable=(Transport.FILES_UNAVAILABLE,),
            ),
            Route(
                "PUT",
                "/api/artifacts/{artifact_id}/content",
                "Send a file that was announced, or the rest of it",
                self.receive,
                ReceiveReply,
                scope=Scope.JOBS_WRITE,
                query=ReceiveQuery,
                raw_max_bytes=self._most,
                errors=(*missing, Code.ARTIFACT_MISMATCH, Code.TOO_BUSY),
                unavailable=(Transport.FILES_FULL, Transport.FILES_UNAVAILABLE),
            ),
            Route(
                "POST",
                "/api/artifacts/{artifact_id}/done",
                "Say that a file was sent",
                self.finish,
                ArtifactReply,
                scope=Scope.JOBS_WRITE,
                body=FinishRequest,
                body_optional=True,
                errors=(*missing, Code.ARTIFACT_MISMATCH, Code.TOO_BUSY),
                unavailable=(Transport.FILES_FULL, Transport.FILES_UNAVAILABLE),
            ),
            Route(
                "GET",
                "/api/artifacts",
                "List my files",
                self.mine,
                ArtifactsReply,
                scope=Scope.JOBS_READ,
                query=Page,
            ),
            Route(
                "GET",
                "/api/artifacts/{artifact_id}",
                "Download one of my files",
                self.download,
                Redirect,
                scope=Scope.JOBS_READ,
                errors=(*missing, Code.TOO_BUSY),
                has_file=True,
            ),
            Route(
                "GET",
                "/api/artifacts/{artifact_id}/address",
                "Say where one of my files is downloaded",
                self.address,
                AddressReply,
                scope=Scope.JOBS_READ,
                errors=missing,
            ),
            Route(
                "DELETE",
                "/api/artifacts/{artifact_id}",
                "Delete one of my files",
                self.delete,
                Reply,
                scope=Scope.JOBS_WRITE,
                errors=(*missing, Code.ARTIFACT_NEEDED),
            ),
            Route(
                "GET",
                "/api/jobs/{job_id}/artifacts",
                "List what a job has left",
                self.of_job,
                ArtifactsReply,
                scope=Scope.JOBS_READ,
                query=Page,
                errors=(Code.JOB_NOT_FOUND,),
            ),
        ]

    def _workers(self) -> list[Route]:
        current = (Code.ARTIFACT_NOT_FOUND, Code.ATTEMPT_NOT_CURRENT)
        return [
            Route(
                "POST",
                "/api/worker/jobs/{job_id}/artifacts",
                "Announce a file that a job has left",
                self.announce_for_job,
                AnnounceReply,
                auth=Auth.WORKER,
                body=AnnounceForJobRequest,
                errors=(
                    Code.JOB_NOT_FOUND,
                    Code.ATTEMPT_NOT_CURRENT,
                    Code.ARTIFACT_TOO_LARGE,
                    Code.ARTIFACT_QUOTA_EXCEEDED,
                ),
                unavailable=(Transport.FILES_UNAVAILABLE,),
            ),
            Route(
                "PUT",
                "/api/worker/artifacts/{artifact_id}/content",
                "Send a file that a job has left, or the rest of it",
                self.receive_from_device,
                ReceiveReply,
                auth=Auth.WORKER,
                query=ReceiveQuery,
                raw_max_bytes=self._most,
                errors=(*current, Code.ARTIFACT_MISMATCH, Code.TOO_BUSY),
                unavailable=(Transport.FILES_FULL, Transport.FILES_UNAVAILABLE),
            ),
            Route(
                "POST",
                "/api/worker/artifacts/{artifact_id}/done",
                "Say that a file that a job has left was sent",
                self.finish_from_device,
                ArtifactReply,
                auth=Auth.WORKER,
                body=FinishRequest,
                body_optional=True,
                errors=(*current, Code.JOB_NOT_FOUND, Code.ARTIFACT_MISMATCH, Code.TOO_BUSY),
                unavailable=(Transport.FILES_FULL, Transport.FILES_UNAVAILABLE),
            ),
            Route(
                "GET",
                "/api/worker/artifacts/{artifact_id}",
                "Download what a job of this device needs",
                self.download_to_device,
                Redirect,
                auth=Auth.WORKER,
                errors=(Code.ARTIFACT_NOT_FOUND, Code.TOO_BUSY),
                has_file=True,
            ),
        ]

    async def announce(self, call: Call[AnnounceRequest, Any]) -> AnnounceReply:
        """Begin or continue to take a file."""
        body = call.body
        new = NewArtifact(body.name, body.sha256, body.size_bytes)
        return _announced(await self._artifacts.announce(call.user_id, new), "/api/artifacts")

    async def announce_for_job(self, call: Call[AnnounceForJobRequest, Any]) -> AnnounceReply:
        """Begin or continue to take a file of a job."""
        body = call.body
        announced = await self._artifacts.announce_for_job(
            call.device,
            in_path(call.path["job_id"], Code.JOB_NOT_FOUND),
            body.attempt,
            body.kind,
            NewArtifact(body.name, body.sha256, body.size_bytes),
        )
        return _announced(announced, "/api/worker/artifacts")

    async def receive(self, call: Call[RawBody, ReceiveQuery]) -> ReceiveReply:
        """Take bytes of a file."""
        artifact = await self._artifacts.find_input(call.user_id, _artifact_id(call))
        return await self._receive(artifact, call)

    async def receive_from_device(self, call: Call[RawBody, ReceiveQuery]) -> ReceiveReply:
        """Take bytes of a file of a job."""
        artifact = await self._artifacts.find_sent_by(call.device, _artifact_id(call))
        return await self._receive(artifact, call, call.device)

    async def _receive(
        self,
        artifact: ArtifactRow,
        call: Call[RawBody, ReceiveQuery],
        device: DeviceRow | None = None,
    ) -> ReceiveReply:
        body, offset = call.body, call.query.offset
        size = body.declared_bytes or 0
        receiving = self._artifacts.receiving(
            artifact, offset, size, device=device, client=call.client
        )
        async with receiving as receiver:
            async for piece in body.pieces():
                await receiver.write(piece)
        return ReceiveReply(offset=receiver.offset)

    async def finish(self, call: Call[FinishRequest, Any]) -> ArtifactReply:
        """Take a file as whole."""
        artifact = await self._artifacts.find_input(call.user_id, _artifact_id(call))
        body = call.body
        whole = await self._artifacts.finish(artifact, sha256=body.sha256, etags=body.etags or ())
        return ArtifactReply(artifact=_item(whole))

    async def finish_from_device(self, call: Call[FinishRequest, Any]) -> ArtifactReply:
        """Take a file of a job as whole."""
        artifact = await self._artifacts.find_sent_by(call.device, _artifact_id(call))
        body = call.body
        whole = await self._artifacts.finish(
            artifact, sha256=body.sha256, etags=body.etags or (), device=call.device
        )
        return ArtifactReply(artifact=_item(whole))

    async def mine(self, call: Call[Nothing, Page]) -> ArtifactsReply:
        """List the caller's files."""
        query = call.query
        rows = await self._artifacts.page_of_user(
            call.user_id, before=query.before, limit=query.fetch_limit
        )
        return ArtifactsReply.of(query, rows, _item)

    async def of_job(self, call: Call[Nothing, Page]) -> ArtifactsReply:
        """List the artifacts of a job of the caller."""
        query = call.query
        job_id = in_path(call.path["job_id"], Code.JOB_NOT_FOUND)
        rows = await self._artifacts.page_of_job(
            call.user_id, job_id, before=query.before, limit=query.fetch_limit
        )
        return ArtifactsReply.of(query, rows, _item)

    async def download(self, call: Call[Nothing, Any]) -> Reply:
        """Return one of the caller's files."""
        artifact = await self._artifacts.find(call.user_id, _artifact_id(call))
        return await sent(self._artifacts, artifact)

    async def address(self, call: Call[Nothing, Any]) -> AddressReply:
        """Return the address of one of the caller's files, for clients that follow no redirect."""
        artifact = await self._artifacts.find(call.user_id, _artifact_id(call))
        url = self._artifacts.address(artifact)
        return AddressReply(url=url or f"/api/artifacts/{artifact.id}")

    async def download_to_device(self, call: Call[Nothing, Any]) -> Reply:
        """Return a file to a device that needs it."""
        artifact = await self._artifacts.find_for_device(call.device, _artifact_id(call))
        return await sent(self._artifacts, artifact)

    async def delete(self, call: Call[Nothing, Any]) -> Reply:
        """Delete one of the caller's files."""
        await self._artifacts.delete(call.user_id, _artifact_id(call))
        return Reply()


async def sent(artifacts: Artifacts, row: ArtifactRow) -> Reply:
    """Return the answer that has a file, which browsers only save, or leads to its address."""
    content = await artifacts.open(row)
    if isinstance(content, str):
        return Redirect(url=content)
    return Download(name=row.name, etag=row.digest, content=content)


def _artifact_id(call: Call[Any, Any]) -> str:
    return in_path(call.path["artifact_id"], Code.ARTIFACT_NOT_FOUND)


def _announced(announced: Announced, where: str) -> AnnounceReply:
    artifact = announced.artifact
    reply = AnnounceReply(artifact_id=artifact.id, offset=announced.offset)
    if artifact.content_id is not None:
        return reply
    parts = announced.parts
    if not parts:
        reply.upload = Request(method="PUT", url=f"{where}/{artifact.id}/content", headers={})
    elif len(parts) == 1:
        reply.upload = Request(method="PUT", url=parts[0].url, headers=parts[0].headers)
    else:
        reply.parts = [
            PartRequest(
                method="PUT",
                url=part.url,
                headers=part.headers,
                offset=part.offset,
                size_bytes=part.size_bytes,
            )
            for part in parts
        ]
    return reply


def _item(row: ArtifactRow) -> ArtifactItem:
    return ArtifactItem(
        id=row.id,
        kind=_KINDS[row.kind],
        name=row.name,
        size_bytes=row.size_bytes,
        sha256=row.digest,
        is_whole=row.content_id is not None,
        created_at=timestamp(row.created_at),
        job_id=UNSET if row.job_id is None else row.job_id,
        attempt=UNSET if row.attempt is None else row.attempt,
        expires_at=UNSET if row.expires_at is None else timestamp(row.expires_at),
    )


_KINDS: dict[str, Literal["input", "output", "checkpoint"]] = {
    "input": "input",
    "output": "output",
    "checkpoint": "checkpoint",
}
