"""How large what seats say to each other may be: known from the job alone, so that nobody has to be believed."""

from __future__ import annotations

from sentinel_market.wire import relay_pb2 as pb
from verifier.context import SeatContext

SEAT_MESSAGE_BYTES = 512 << 20
"""No message between seats is larger: evidence holds at most 480 MiB of tensors."""


def control_bytes(context: SeatContext) -> int:
    """No honest message is larger that carries no tensors: a Done names every accepted frame and backward (36 bytes
    each) and up to 4096 audits (48 each), a record signature every worker, a certificate every seat."""
    spec = context.spec
    backwards = context.num_stages * spec.training.microbatches
    slots = context.num_stages * context.num_replicas
    return (256 << 10) + (8 << 10) * slots + (1 << 10) * backwards + (16 << 10) * len(context.seats)


def question_bytes(context: SeatContext, kind: str | None) -> int:
    """``kind``: which SeatMessage. Only accusations, of a worker or of a seat, bring tensors; whatever else does is
    asked for."""
    return SEAT_MESSAGE_BYTES if kind in ("accuse", "fault_claim") else control_bytes(context)


def answer_bytes(context: SeatContext, question: str | None) -> int:
    """An update comes with the sum of each replica and two moments, as large as a stage each; other answers with the
    weights of a stage or the tensors of one frame."""
    tensors = context.num_replicas + 2 if question == "update_query" else 1
    return control_bytes(context) + tensors * context.shapes.max_message_bytes


def kind_of(number: int) -> str | None:
    """The kind of SeatMessage with this field number, or None."""
    field = pb.SeatMessage.DESCRIPTOR.fields_by_number.get(number)
    return field.name if field is not None else None


def number_of(message: pb.SeatMessage) -> int:
    """The field number of its kind; 0 for an empty message."""
    kind = message.WhichOneof("kind")
    return pb.SeatMessage.DESCRIPTOR.fields_by_name[kind].number if kind is not None else 0
