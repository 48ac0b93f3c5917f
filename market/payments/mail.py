"""The e-mails about payments, their refunds and their disputes."""

from market.accounts.mail import Message
from market.base.states import ReturnStatus
from market.money.money import as_decimal
from storage.payments.payments import PaymentRow, ReceiptRow
from storage.payments.returns import ReturnRow

SUBJECTS = {
    ("refund", ReturnStatus.DONE): "Your refund is on its way",
    ("refund", ReturnStatus.VOID): "Your refund failed",
    ("dispute", ReturnStatus.PENDING): "A payment of your account is disputed",
    ("dispute", ReturnStatus.DONE): "A dispute was decided for the payer",
    ("dispute", ReturnStatus.VOID): "A dispute was decided for this service",
}
TEXTS = {
    ("refund", ReturnStatus.DONE): (
        "{amount} USD go back to the card or account that you paid with. Banks take up to ten days."
    ),
    ("refund", ReturnStatus.VOID): (
        "The bank did not take {amount} USD back. The money is in your wallet again."
    ),
    ("dispute", ReturnStatus.PENDING): (
        "The bank of the payer disputes {amount} USD. Until it decides, the rest of the money is "
        "held, and your account buys nothing."
    ),
    ("dispute", ReturnStatus.DONE): (
        "The bank has taken {amount} USD back. The part that was spent before is a debt of your "
        "account; your next payment pays it."
    ),
    ("dispute", ReturnStatus.VOID): (
        "The bank has decided about {amount} USD, and the held money is in your wallet again."
    ),
}


def paid(to: str, app_url: str, row: PaymentRow, receipt: ReceiptRow) -> Message:
    """Return the e-mail with the link to the receipt or invoice of a payment."""
    document = "invoice" if receipt.is_invoice else "receipt"
    what = "Your automatic top-up" if row.is_automatic else "Your payment"
    return Message(
        to,
        f"{document.capitalize()} {receipt.number}",
        f"Thank you. {what} of {as_decimal(row.amount)} USD is in your wallet.\n\n"
        f"The {document}:\n\n{app_url}/console/wallet/receipt/{row.id}\n",
    )


def returned(
    to: str, app_url: str, row: ReturnRow, after: ReturnStatus, note: int | None = None
) -> Message:
    """Return the e-mail about a refund or a dispute that has another state now.

    `note` is the number of the credit note of a refund that was made.
    """
    key = ("dispute" if row.kind == "dispute" else "refund", after)
    subject = SUBJECTS.get(key, "A refund of your payment has begun")
    text = TEXTS.get(key, "{amount} USD of your payment go back to its payer.")
    return Message(
        to,
        subject,
        f"{text.format(amount=as_decimal(row.amount))}\n\n"
        f"{app_url}/console/wallet/pay/{row.payment_id}\n"
        + (
            f"\nCredit note {note}:\n\n{app_url}/console/wallet/receipt/{row.payment_id}\n"
            if note
            else ""
        ),
    )


def top_up(to: str, app_url: str, subject: str, text: str) -> Message:
    """Return an e-mail about the automatic top-up, or the saved card, with a link to the wallet."""
    return Message(to, subject, f"{text}\n\n{app_url}/console/wallet\n")
