"""A notifier for chats that take messages at an address of their own, as Slack, Mattermost and Teams do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.notifier import BaseNotifier

from updraft.exceptions import RefusedError, UnavailableError

if TYPE_CHECKING:
    from airflow.sdk import Context

SECONDS = 20.0
TEXT = "{{ subject }}: {{ message }}\n{{ url }}"


class WebhookNotifier(BaseNotifier):
    """Post `{"text": ...}` to an address.

    Args:
        conn_id: An Airflow connection whose password is the address, which is a secret: who knows it may post.
        text: The message, a template.

    Raises UnavailableError if the address does not answer with success.
    """

    template_fields: Sequence[str] = ("text",)

    def __init__(self, conn_id: str, text: str = TEXT) -> None:
        super().__init__()
        self.conn_id = conn_id
        self.text = text

    def notify(self, context: Context) -> None:
        """Send the message once."""
        import httpx
        from airflow.sdk import BaseHook

        url: Any = BaseHook.get_connection(self.conn_id).password
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise RefusedError(f"the password of the connection {self.conn_id!r} is no http:// or https:// address")
        try:
            answer = httpx.post(url, json={"text": self.text}, timeout=SECONDS, follow_redirects=False)
        except httpx.HTTPError as exc:  # its text may hold the address
            raise UnavailableError(f"the address of {self.conn_id!r} does not answer ({type(exc).__name__})") from None
        if not answer.is_success:
            raise UnavailableError(f"the address of {self.conn_id!r} answers {answer.status_code}")
