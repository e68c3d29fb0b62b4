"""The coordinator as seen by workers, verifiers and the command line.

Trouble of the network is ``PeerGone`` (try again), a refusal is ``Refused`` with the coordinator's own words. Nothing
that is content-addressed is believed before its digest was checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote as url_quote

import httpx
from blake3 import blake3
from pydantic import BaseModel, ValidationError

from sentinel_market.domain.job_spec import JobSpec
from sentinel_market.domain.messages import Endpoint
from sentinel_market.errors import PeerGone, UserError
from sentinel_market.wire import dto

Signer = Callable[[bytes], bytes]
"""From a 32-byte digest to a 65-byte signature: ``HotKey.sign``."""
_M = TypeVar("_M", bound=BaseModel)
_CHUNK: Final = 1024 * 1024


class Refused(UserError):  # noqa: N818
    """The coordinator refused a request. ``code`` is stable, ``status`` the HTTP status."""

    def __init__(self, status: int, code: str, message: str) -> None:
        self.status = status
        self.code = code
        super().__init__(message)


class CoordinatorClient:
    """One coordinator. Close it, or use it in a ``with`` block. Safe to share between threads.

    ``signer``, ``chain_id`` and ``market`` (address of JobMarket) are needed only to write as a seat.
    """

    def __init__(
        self,
        url: str,
        *,
        signer: Signer | None = None,
        chain_id: int = 0,
        market: str = "",
        timeout: float = 10.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._signer, self._chain_id, self._market = signer, chain_id, market
        self._http = httpx.Client(base_url=self.url, timeout=timeout, transport=transport, trust_env=False)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def __enter__(self) -> CoordinatorClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- reading

    def health(self) -> dto.Health:
        """Whether it is of use; answers also when it says that it is not."""
        response = self._send("GET", "/healthz", accept=(503,))
        return _parse(dto.Health, response)

    def jobs(self, before: int | None = None, limit: int = 50) -> dto.JobList:
        """A page of jobs, newest first."""
        query: dict[str, Any] = {"limit": limit} | ({} if before is None else {"before": before})
        return _parse(dto.JobList, self._send("GET", "/jobs", params=query))

    def job(self, job_id: int) -> dto.JobView:
        """One job."""
        return _parse(dto.JobView, self._send("GET", f"/jobs/{job_id}"))

    def spec(self, digest: bytes) -> JobSpec:
        """A job spec by its digest, checked."""
        response = self._send("GET", f"/specs/{digest.hex()}")
        spec = JobSpec.from_canonical(response.content)
        if spec.digest() != digest:
            raise PeerGone(f"{self.url} answered with another job spec than {digest.hex()}")
        return spec

    def endpoints(self, job_id: int) -> list[dto.EndpointView]:
        """Where the seats' relays listen. Check each signature against the seat's hot key before you dial."""
        return _parse_list(dto.EndpointView, self._send("GET", f"/jobs/{job_id}/endpoints"))

    def metrics(self, job_id: int, since: int = 0, limit: int = 1000) -> dto.MetricsView:
        """Steps from ``since`` on."""
        query = {"since": since, "limit": limit}
        return _parse(dto.MetricsView, self._send("GET", f"/jobs/{job_id}/metrics", params=query))

    def verdicts(self, job_id: int, after: int = 0, limit: int = 500) -> list[dto.VerdictView]:
        """Verdict events with an id above ``after``, oldest first."""
        query = {"after": after, "limit": limit}
        return _parse_list(dto.VerdictView, self._send("GET", f"/jobs/{job_id}/verdicts", params=query))

    def workers(self, job_id: int) -> list[dto.WorkerView]:
        """All assignments of a job, past ones included."""
        return _parse_list(dto.WorkerView, self._send("GET", f"/jobs/{job_id}/workers"))

    def cases(self, job_id: int) -> list[dto.CaseView]:
        """The court's cases on a job."""
        return _parse_list(dto.CaseView, self._send("GET", f"/jobs/{job_id}/cases"))

    def settlements(self, job_id: int) -> list[dto.SettlementView]:
        """All roots, without leaves."""
        return _parse_list(dto.SettlementView, self._send("GET", f"/jobs/{job_id}/settlements"))

    def settlement(self, job_id: int, epoch: int, account: str | None = None) -> dto.SettlementDetail:
        """The root of an epoch with its leaves and proofs, or those of one account only."""
        query = {} if account is None else {"account": account}
        return _parse(dto.SettlementDetail, self._send("GET", f"/jobs/{job_id}/settlements/{epoch}", params=query))

    def ledger(self, job_id: int) -> dto.LedgerView:
        """Who earned, was promised, drew and lost what."""
        return _parse(dto.LedgerView, self._send("GET", f"/jobs/{job_id}/ledger"))

    def seats_record(self, job_id: int) -> dto.JobRecordView:
        """Misses, false alarms and their effect on pay, of every seat of a job."""
        return _parse(dto.JobRecordView, self._send("GET", f"/jobs/{job_id}/seats/record"))

    def account_record(self, account: str) -> dto.AccountRecordView:
        """The same of one account over all its jobs."""
        return _parse(dto.AccountRecordView, self._send("GET", f"/seats/{account}/record"))

    # --- content-addressed

    def put_spec(self, spec: JobSpec) -> str:
        """Store a job spec; returns its digest in hex."""
        body = spec.canonical_json()
        self._send("POST", "/specs", content=body, headers={"Content-Type": "application/json"})
        return spec.digest().hex()

    def put(self, data: bytes) -> str:
        """Store a blob; returns its BLAKE3 digest in hex (the ``BlobStore`` port)."""
        digest = blake3(data).hexdigest()
        self._send("PUT", f"/blobs/{digest}", content=data)
        return digest

    def put_file(self, path: Path) -> str:
        """Store a file as a blob without reading it whole; returns its digest in hex."""
        hasher = blake3()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                hasher.update(chunk)
        digest = hasher.hexdigest()
        with path.open("rb") as file:
            headers = {"Content-Length": str(path.stat().st_size)}
            self._send("PUT", f"/blobs/{digest}", content=iter(lambda: file.read(_CHUNK), b""), headers=headers)
        return digest

    def get(self, digest: str) -> bytes:
        """A blob, checked (the ``BlobStore`` port). PeerGone when absent, unreachable or not what it says."""
        try:
            response = self._send("GET", f"/blobs/{url_quote(digest, safe='')}")
        except Refused as error:
            raise PeerGone(f"{self.url} does not have the blob {digest}: {error}") from error
        if blake3(response.content).hexdigest() != digest:
            raise PeerGone(f"{self.url} answered with other bytes than {digest}")
        return response.content

    # --- writing as a seat

    def announce(self, endpoint: Endpoint, signature: bytes) -> None:
        """Publish where a seat's relay listens; ``signature`` is the hot key's over the EIP-712 digest."""
        body = dto.EndpointAnnouncement(
            job_id=endpoint.job_id,
            verifier=endpoint.verifier,
            endpoint=endpoint.endpoint,
            issued=endpoint.issued,
            signature="0x" + signature.hex(),
        )
        self._post(f"/jobs/{endpoint.job_id}/endpoints", body, signed=False)

    def post_metrics(self, metrics: dto.StepMetrics) -> None:
        """Publish a step."""
        self._post(f"/jobs/{metrics.job_id}/metrics", metrics)

    def post_verdicts(self, job_id: int, events: Sequence[dto.VerdictEvent]) -> None:
        """Publish verdict events, in as many requests as they need."""
        for start in range(0, len(events), dto.MAX_EVENTS // 2):
            part = list(events[start : start + dto.MAX_EVENTS // 2])
            self._post(f"/jobs/{job_id}/verdicts", dto.VerdictBatch(job_id=job_id, events=part))

    def post_settlement(self, proposal: dto.SettlementProposal) -> None:
        """Publish a settlement root with its leaves, so that everybody can claim."""
        self._post(f"/jobs/{proposal.job_id}/settlements", proposal)

    def post_seats_record(self, record: dto.SeatsRecord) -> None:
        """Publish the record of all seats as this one has it."""
        self._post(f"/jobs/{record.job_id}/seats/record", record)

    def _post(self, path: str, body: BaseModel, *, signed: bool = True) -> None:
        content = body.model_dump_json().encode()
        headers = {"Content-Type": "application/json"}
        if signed:
            if self._signer is None:
                raise UserError(f"writing to {self.url}{path} needs the hot key of a seat; none was given")
            digest = dto.request_digest(
                chain_id=self._chain_id, market=self._market, method="POST", path=path, body=content
            )
            headers[dto.SIGNATURE_HEADER] = "0x" + self._signer(digest).hex()
        self._send("POST", path, content=content, headers=headers)

    def _send(self, method: str, path: str, *, accept: tuple[int, ...] = (), **options: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **options)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise PeerGone(f"the coordinator at {self.url} does not answer: {error or type(error).__name__}") from error
        if response.is_success or response.status_code in accept:
            return response
        code, message = _error(response)
        if response.status_code >= 500 and response.status_code != 507:
            raise PeerGone(f"the coordinator at {self.url} is in trouble ({response.status_code}): {message}")
        raise Refused(response.status_code, code, f"the coordinator at {self.url} refused {method} {path}: {message}")


def _error(response: httpx.Response) -> tuple[str, str]:
    try:
        error = response.json()["error"]
        return str(error["code"])[:64], str(error["message"])[:1000]
    except (ValueError, KeyError, TypeError):
        return "unknown", f"HTTP status {response.status_code}"


def _parse(model: type[_M], response: httpx.Response) -> _M:
    try:
        return model.model_validate_json(response.content)
    except ValidationError as error:
        raise PeerGone(f"{response.url} answered with something else than {model.__name__}: {error}") from error


def _parse_list(model: type[_M], response: httpx.Response) -> list[_M]:
    try:
        rows = response.json()
        return [model.model_validate(row) for row in rows]
    except (ValueError, TypeError) as error:
        raise PeerGone(f"{response.url} answered with something else than {model.__name__}s: {error}") from error
