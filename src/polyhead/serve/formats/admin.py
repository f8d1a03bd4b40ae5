"""Changes of tasks over HTTP, if allowed: uploads, removals, rollbacks, and shadow candidates.

Every change is the certified one of `polyhead tasks`, made in a separate process; then this server loads it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from polyhead.bundle.format import CERTIFICATES
from polyhead.certify.certificate import Ledger
from polyhead.errors import LONGEST_NAME
from polyhead.serve.admin import Admin
from polyhead.serve.changes import ChangeState
from polyhead.serve.event_loop import off_loop
from polyhead.serve.formats.base import Operation, WireFormat
from polyhead.serve.http import HttpError, json_content, json_value
from polyhead.serve.keys import ADMIN_KEY, HAS_KEYS, host_in, is_loopback
from polyhead.serve.orders import ChangeResult
from polyhead.serve.service import Service
from polyhead.serve.several import ServiceSet
from polyhead.serve.shadow import ShadowState
from polyhead.values import Value

LOCAL = "this machine"  # who asks without a key
MOST_CHANGES = 1000
AdminHandler = Callable[[Admin, Request], Awaitable[Response]]


class RollbackRequest(Value):
    """The version to go back to; None is the one before the live one."""

    version: Annotated[str | None, msgspec.Meta(examples=["v0001"])] = None


_ROLLBACK = msgspec.json.Decoder(RollbackRequest)


class PastChange(Value):
    """An operation on the bundle, as its certificate says."""

    number: int
    operation: str
    changed: dict[str, tuple[str | None, str | None]]  # task -> live version before, after
    by: str  # "" where nobody was named
    at: str  # UTC; when the certificate was written
    paragraph: str  # all of it in words
    certificate: str
    proven: tuple[str, ...]  # tasks that answered their probes with the same bits
    probes: int
    unproven: tuple[str, ...]
    bundle: str | UnsetType = UNSET  # of a set: the one that was changed


class ChangesAnswer(Value):
    """The changes, newest first, and the state of this server."""

    server: ChangeState
    versions: dict[str, str]  # that answer now
    changes: list[PastChange]


class AdminFormat(WireFormat):
    """`PUT` and `DELETE /v1/tasks/{name}`, `/rollback`, `/shadow`, `/v1/changes`; all want the key of an admin."""

    name = "admin"
    refuses_queries = True

    def routes(self, service: Service) -> Sequence[BaseRoute]:
        """All routes; none where the server's settings do not allow changes."""
        if not service.settings.admin:
            return []
        admins = {member: Admin(member) for member in service.members.values() or [service]}
        if isinstance(service, ServiceSet):
            for name, member in service.members.items():
                admins[member].served, admins[member].check = service, partial(service.check_task, name)
        return [
            Route(path, partial(_admitted, service, admins, handler), methods=[method])
            for method, path, handler, *_ in TABLE
        ]

    def operations(self) -> Sequence[Operation]:
        """An entry for each route; uploads are tar files."""
        statuses = {403: "No admin asks", 409: "Another change is being made"}
        return [
            Operation(
                method=method,
                path=path,
                summary=text,
                request=body,
                response=answer,
                access="admin",
                statuses=statuses,
                queries=(*queries, "bundle") if "{" in path else queries,
            )
            for method, path, _, text, body, answer, queries in TABLE
        ]


def is_upload(method: str, path: str) -> bool:
    """Whether a request's body may be as large as an upload."""
    return method == "PUT" and path.startswith("/v1/tasks/")


async def _admitted(
    service: Service, admins: Mapping[Service, Admin], handler: AdminHandler, request: Request
) -> Response:
    check_admitted(request)
    member, bundle = service, request.query_params.get("bundle")
    if isinstance(service, ServiceSet):
        is_removed = handler is _delete
        member = service.changed(request.path_params.get("name"), bundle, is_removed=is_removed)
    elif bundle is not None:
        raise HttpError(422, "'bundle' chooses one of several, and the server has one", got=bundle, do="leave it out")
    return await handler(admins[member], request)


def check_admitted(request: Request) -> None:
    """Raises HttpError 403 unless an admin's key was checked, or a local program asks a server without keys.

    Any web page could make a browser send a request: without a key it is refused by its headers about page or host.
    """
    if request.scope.get(ADMIN_KEY):
        return
    ends = (request.scope.get("client"), request.scope.get("server"))
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    is_local = all(end is not None and is_loopback(str(end[0])) for end in ends) and is_loopback(host_in(host))
    is_foreign = origin is not None and origin.partition("://")[2] != host
    if request.scope.get(HAS_KEYS) or not is_local or is_foreign:
        raise HttpError(
            403,
            "tasks are changed with an admin's key, or from this machine where the server has no keys",
            do="start the server with keys for admins, or ask from the machine that serves, at 127.0.0.1",
        )


def _actor(request: Request) -> str:
    return str(request.scope.get(ADMIN_KEY) or LOCAL)


async def _put(admin: Admin, request: Request) -> Response:
    name = request.path_params["name"]
    answer = await admin.put(
        name,
        request.stream(),
        encoding=_encoding(request),
        actor=_actor(request),
        allow_lost_labels=_allows_lost_labels(request),
    )
    return _answered(answer)


async def _delete(admin: Admin, request: Request) -> Response:
    return _answered(await admin.remove(request.path_params["name"], actor=_actor(request)))


async def _roll_back(admin: Admin, request: Request) -> Response:
    body, name = await request.body(), request.path_params["name"]
    requested = await off_loop(len(body), json_value, body, _ROLLBACK) if body else RollbackRequest()
    if len(requested.version or "") > LONGEST_NAME:
        raise HttpError(422, "the version has too many characters", allowed=f"{LONGEST_NAME:,}")
    return _answered(await admin.roll_back(name, requested.version, actor=_actor(request)))


async def _promote(admin: Admin, request: Request) -> Response:
    name, allow = request.path_params["name"], _allows_lost_labels(request)
    return _answered(await admin.promote(name, actor=_actor(request), allow_lost_labels=allow))


async def _put_shadow(admin: Admin, request: Request) -> Response:
    name, share = request.path_params["name"], _share(request.query_params.get("share"))
    state = await admin.put_shadow(name, request.stream(), encoding=_encoding(request), share=share)
    return json_content(state, 201)


async def _shadow(admin: Admin, request: Request) -> Response:
    return json_content(admin.shadow(request.path_params["name"], has_texts=_is_true(request, "texts")))


async def _drop_shadow(admin: Admin, request: Request) -> Response:
    return json_content(await admin.drop_shadow(request.path_params["name"]))


async def _changes(admin: Admin, request: Request) -> Response:
    text = request.query_params.get("limit", "50")
    limit = int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else 0
    if not 1 <= limit <= MOST_CHANGES:
        raise HttpError(422, "'limit' is a number of changes", got=text, allowed=f"1 to {MOST_CHANGES:,}")
    return json_content(await admin.in_thread(past_changes, admin.served, limit))


def past_changes(service: Service, limit: int) -> ChangesAnswer:
    """The newest changes of the bundles that left sound certificates; it reads their files."""
    changes = [] if service.members else _changes_of(service, limit)
    for name, member in service.members.items():
        more = [msgspec.structs.replace(change, bundle=name) for change in _changes_of(member, limit)]
        changes = sorted((*changes, *more), key=lambda change: change.at, reverse=True)[:limit]
    return ChangesAnswer(server=service.change_state, versions=dict(service.loaded.versions), changes=changes)


def _changes_of(service: Service, limit: int) -> list[PastChange]:
    ledger, changes = Ledger(service.session.bundle.root), list[PastChange]()
    for certificate in ledger.sound():
        if len(changes) == limit:
            break
        changes.append(
            PastChange(
                number=certificate.number,
                operation=certificate.operation,
                changed=certificate.changed,
                by=certificate.actor or "",
                at=certificate.at or _written(ledger.root, certificate.name),
                paragraph=certificate.paragraph,
                certificate=certificate.name,
                proven=certificate.proven,
                probes=certificate.probes,
                unproven=certificate.unproven,
            )
        )
    return changes


def _written(root: Path, name: str) -> str:
    """When a certificate that does not say so was written, as its file says."""
    written = (root / CERTIFICATES / name).stat().st_mtime
    return datetime.fromtimestamp(written, UTC).isoformat(timespec="seconds")


def _answered(answer: ChangeResult) -> Response:
    return json_content(answer, 201 if answer.is_changed and answer.before is None else 200)


def _encoding(request: Request) -> str:
    return request.headers.get("content-encoding", "identity")


def _allows_lost_labels(request: Request) -> bool:
    return _is_true(request, "allow_lost_labels")


def _is_true(request: Request, name: str) -> bool:
    """A query of two values, by default false; raises HttpError 422 for another value."""
    text = request.query_params.get(name, "false")
    if text not in ("true", "false"):
        raise HttpError(422, f"'{name}' is true or false", got=text, allowed=["true", "false"])
    return text == "true"


def _share(text: str | None) -> float:
    try:
        share = 0.1 if text is None else float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise HttpError(
            422, "'share' is the part of requests that a candidate sees", got=text, allowed="over 0, up to 1"
        )
    return share


_TASK = "/v1/tasks/{name}"
_SHADOW, _LOST = f"{_TASK}/shadow", ("allow_lost_labels",)
TABLE: list[tuple[str, str, AdminHandler, str, object, object, tuple[str, ...]]] = [
    ("PUT", _TASK, _put, "Adds a task or replaces it by an upload.", None, ChangeResult, _LOST),
    ("DELETE", _TASK, _delete, "Removes a task with all its versions.", None, ChangeResult, ()),
    ("POST", f"{_TASK}/rollback", _roll_back, "Goes back to an earlier version.", RollbackRequest, ChangeResult, ()),
    ("GET", "/v1/changes", _changes, "What changed, newest first.", None, ChangesAnswer, ("limit",)),
    ("PUT", _SHADOW, _put_shadow, "Asks an uploaded candidate beside the live task.", None, ShadowState, ("share",)),
    ("GET", _SHADOW, _shadow, "How the candidate answers so far.", None, ShadowState, ("texts",)),
    ("DELETE", _SHADOW, _drop_shadow, "Forgets the candidate.", None, ShadowState, ()),
    ("POST", f"{_SHADOW}/promote", _promote, "Makes the candidate the live version.", None, ChangeResult, _LOST),
]
